"""Simulated tennis rallies as a broadcast camera sees them: the data of the workload `rally`, in any amount.

In: counts, a seed and how badly the ball is seen. Out: values (N, T, 3), the ball in the image per frame, and labels
(N, T), the event per frame. The ball flies in three dimensions, strokes are drawn at random, the flight is projected,
and what a detector adds (noise, misses, occlusions) comes last. Loops run over time steps, never over sequences; time
and memory are linear in N.

Physics, with sources. Court, net and ball: ITF Rules of Tennis (mass 56.0 to 59.4 g, diameter 6.54 to 6.86 cm, rebound
135 to 147 cm from 254 cm). Drag grows with the square of speed: Mehta 1985, Aerodynamics of Sports Balls, Annu. Rev.
Fluid Mech. 17, 151-189. Bounce: Brody 1984, That's How the Ball Bounces, Phys. Teach. 22, 494-497; Cross 2002,
Grip-Slip Behavior of a Bouncing Ball, Am. J. Phys. 70, 1093-1102. On all of it: Brody, Cross and Lindsey 2002, The
Physics and Technology of Tennis. Left out: spin, wind, and balls that clip the net and pass.

Shapes: N sequences, T frames. Space in metres: x along the court from the net, y across it from the middle line, z up
from the ground.
"""

import math
from collections.abc import Sequence

import numpy as np

EVENTS = ("none", "serve", "hit", "bounce", "net")  # class numbers 0..4
NONE, SERVE, HIT, BOUNCE, NET = range(len(EVENTS))
FEATURES = ("u", "v", "visible")

# Frame rate and size of the public broadcast videos of TrackNet (Huang et al. 2019, arXiv:1907.03698).
FRAMES_PER_SECOND = 30.0
IMAGE_WIDTH, IMAGE_HEIGHT = 1280, 720  # pixels
# Behind one baseline and high up: seen from 12 m, the rise of a ball hit at the far end hides that it comes nearer.
CAMERA = (-36.0, 0.0, 20.0)  # m
TILT = math.atan2(20.0, 36.0 - 3.7)  # radians down, at the point 3.7 m in front of the net
FOCAL_LENGTH = 1520.0  # pixels

BASELINE, SIDELINE, SERVICE_LINE = 23.77 / 2, 8.23 / 2, 6.40  # m from the net, from the middle line, from the net
NET_CENTRE, NET_POST, POST = 0.914, 1.07, SIDELINE + 0.914  # m: height, height and place of the singles posts
GROUND_X, GROUND_Y = 17.0, 8.5  # m: the ground that the camera sees; a ball that leaves it is out of play

GRAVITY = 9.81  # m/s2
RADIUS, MASS = 0.033, 0.0577  # m, kg
# Air density 1.2 kg/m3. Drag coefficient 0.55: Cross and Lindsey 2014 (Measurements of Drag and Lift on Tennis Balls in
# Flight, Sports Engineering) found 0.51 for new balls; Mehta, Alam and Subic 2008 (Review of Tennis Ball Aerodynamics)
# report 0.6 to 0.7 in wind tunnels.
DRAG = 1.2 * 0.55 * math.pi * RADIUS**2 / (2 * MASS)  # 1/m
# Square roots of the ITF rebound over the height of the drop: 0.729 and 0.761.
RESTITUTION = (math.sqrt(1.35 / 2.54), math.sqrt(1.47 / 2.54))
FRICTION = (0.5, 0.75)  # coefficient between ball and court, from fast to slow courts
GRIP = 0.6  # horizontal speed kept by a thin hollow sphere that starts without spin and leaves rolling: 1 / (1 + 2/3)
LOWEST_REBOUND = 2.0  # m/s: the next point begins before a ball rises less than 20 cm; such hops are lost in the noise

SUBSTEPS = 4  # per frame
STEP_SECONDS = 1 / (FRAMES_PER_SECOND * SUBSTEPS)
LEAD_FRAMES = 90  # simulated before the window at most, so that windows begin anywhere in a rally
SHORTEST = 16  # frames
EDGE = 2  # frames at either end of a window without labels: a change of course shows only with frames on both sides
OCCLUSION_FRAMES = (3, 8)
BLOCK = 8192  # sequences simulated at once: their state stays in the cache, and memory is that of the result

# Chances: of a stroke to go into the net (more than in life, so that the class is no rarity) or to be volleyed, of a
# ball in court to be hit back.
NET_FAULTS, VOLLEYS, RETURNS = 0.13, 0.15, 0.88

# One uniform draw of each per stroke. They also decide what leads to the stroke: the bounce before it, or the wait and
# toss before a serve.
DRAWS = ("hold", "end", "stand", "pace", "depth", "width", "clearance", "fault", "answer", "delay", "ground", "pause")


class Play:
    """The balls of N sequences at one moment, and their next events. Times in seconds; inf where nothing is due.

    At first every ball is in a server's hand, tossed at a random time from the start of the lead to 0.7 s into the
    window. draws: (N, strokes, DRAWS) in [0, 1).
    """

    def __init__(self, draws: np.ndarray) -> None:
        num_sequences, start = len(draws), -LEAD_FRAMES / FRAMES_PER_SECOND
        self.draws = draws
        self.position = np.zeros((3, num_sequences))  # m
        self.velocity = np.zeros((3, num_sequences))  # m/s
        self.gravity = np.zeros(num_sequences)  # m/s2; 0 for a ball that is held
        self.toss_at = np.full(num_sequences, math.inf)
        self.hit_at = np.full(num_sequences, math.inf)
        self.point_at = np.full(num_sequences, math.inf)  # the next point begins; finite only once the rally is over
        self.is_serve = np.zeros(num_sequences, dtype=bool)  # the next stroke is a serve
        self.out_from = np.zeros(num_sequences)  # m from the net: beyond it the ball is out
        self.num_strokes = np.zeros(num_sequences, dtype=np.int64)
        begin_points(self, np.arange(num_sequences), start)
        self.toss_at = start + draws[:, 0, DRAWS.index("hold")] * (0.7 - start)


def simulate(
    num_sequences: int, num_steps: int, seed: int, noise: float, missed: float, occlusion: float
) -> tuple[np.ndarray, np.ndarray]:
    """values (N, T, 3) float32 in the order of FEATURES and labels (N, T) int64, numbers in EVENTS.

    u, v: position in a 1280 x 720 image in pixels, from its upper left corner. visible: 1.0 seen, 0.0 not (outside the
    image, missed or occluded), and then u and v are 0. An event stands at the frame nearest to it; where two share a
    frame, the later one is kept. The first and last EDGE frames have no event.

    `noise`: standard deviation of u and of v in pixels. `missed`: chance of each frame to have no detection.
    `occlusion`: chance of a sequence to hide 3 to 8 frames in a row.

    The same arguments give the same arrays. A larger N begins with the sequences of a smaller one. Noise, misses and
    occlusions are drawn apart: changing one of the three leaves the rallies and the other two as they are. Another T
    gives other rallies. Another machine or version of numpy may round logarithms otherwise, and so differ in the last
    digits.

    Raises ValueError for counts or chances that make no sense.
    """
    values, labels = simulate_noises(num_sequences, num_steps, seed, [noise], missed, occlusion)
    return values[0], labels


def simulate_noises(
    num_sequences: int, num_steps: int, seed: int, noises: Sequence[float], missed: float, occlusion: float
) -> tuple[np.ndarray, np.ndarray]:
    """`simulate` with each of K noises, in little more time than with one: values (K, N, T, 3) and labels (N, T)."""
    for noise in noises:
        check(num_sequences, num_steps, seed, noise, missed, occlusion)
    values = np.empty((len(noises), num_sequences, num_steps, len(FEATURES)), dtype=np.float32)
    labels = np.empty((num_sequences, num_steps), dtype=np.int64)
    for block, start in enumerate(range(0, num_sequences, BLOCK)):
        rows = slice(start, min(start + BLOCK, num_sequences))
        # The block's number decides its draws, and draws are filled row by row, so a shorter block begins alike.
        streams = np.random.SeedSequence(seed, spawn_key=(block,)).spawn(4)
        path, labels[rows] = rallies(rows.stop - start, num_steps, np.random.default_rng(streams[0]))
        for number, noise in enumerate(noises):
            seen = [np.random.default_rng(stream) for stream in streams[1:]]
            values[number, rows] = observe(path, noise, missed, occlusion, seen)
    return values, labels


def check(num_sequences: int, num_steps: int, seed: int, noise: float, missed: float, occlusion: float) -> None:
    counts = (("num_sequences", num_sequences, 1), ("num_steps", num_steps, SHORTEST), ("seed", seed, 0))
    for name, count, least in counts:
        if count < least:
            raise ValueError(f"{name} is {count}; it must be at least {least}, so raise it")
    if not 0 <= noise < math.inf:
        raise ValueError(f"noise is {noise}; it must be a number of pixels from 0 on, for example 1.5")
    for name, chance in (("missed", missed), ("occlusion", occlusion)):
        if not 0 <= chance <= 1:
            raise ValueError(f"{name} is {chance}; it must be a chance from 0 to 1, for example 0.05")


def rallies(num_sequences: int, num_steps: int, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Windows of rallies, seen perfectly: the ball's path (N, T, 3) in metres and labels (N, T) int64.

    Every sequence begins with a ball in a server's hand, up to LEAD_FRAMES before the window, so a window may begin
    before a serve, in a rally or after its end.
    """
    # More strokes than a rally gets in that time; were it to get more, the draws would come round again.
    num_draws = (LEAD_FRAMES + num_steps) // 8 + 2
    play = Play(generator.random((num_sequences, num_draws, len(DRAWS))))
    path = np.empty((num_steps, 3, num_sequences))
    labels = np.zeros((num_sequences, num_steps), dtype=np.int64)

    def label(sequences: np.ndarray, steps: np.ndarray, events: np.ndarray | int) -> None:
        frames = np.rint(steps / SUBSTEPS).astype(np.int64)
        inside = (frames >= EDGE) & (frames < num_steps - EDGE)
        labels[sequences[inside], frames[inside]] = np.broadcast_to(events, sequences.shape)[inside]

    for step in range(-LEAD_FRAMES * SUBSTEPS, num_steps * SUBSTEPS):
        now = step * STEP_SECONDS
        begin_points(play, np.flatnonzero(play.point_at <= now), now)
        toss(play, np.flatnonzero(play.toss_at <= now), now)
        struck = np.flatnonzero(play.hit_at <= now)
        label(struck, np.full(len(struck), step), np.where(play.is_serve[struck], SERVE, HIT))
        strike(play, struck, now)
        if step >= 0 and step % SUBSTEPS == 0:
            path[step // SUBSTEPS] = play.position

        before = play.position
        play.position, play.velocity = fly(before, play.velocity, play.gravity, STEP_SECONDS)
        stopped, share = meets_net(before, play.position)
        stop(play, stopped, before[:, stopped], share, now)
        label(stopped, step + share, NET)
        landed, share = meets_ground(before, play.position)
        rises = bounce(play, landed, share, now)
        label(landed[rises], (step + share)[rises], BOUNCE)
        x, y, _ = play.position
        away = np.flatnonzero((np.abs(x) > GROUND_X) | (np.abs(y) > GROUND_Y))
        play.point_at[away], play.hit_at[away] = now, math.inf
    return path.transpose(2, 0, 1), labels


def drawn(play: Play, where: np.ndarray) -> dict[str, np.ndarray]:
    """The draws (K,) of the next stroke of the K sequences `where`, by name."""
    rows = play.draws[where, play.num_strokes[where] % play.draws.shape[1]]
    return dict(zip(DRAWS, rows.T, strict=True))


def begin_points(play: Play, where: np.ndarray, now: float) -> None:
    """A new ball, held at rest behind a baseline, left or right of the middle."""
    draw = drawn(play, where)
    end = np.where(draw["end"] < 0.5, -1.0, 1.0)
    side = np.where(draw["end"] % 0.5 < 0.25, -1.0, 1.0)
    play.position[:, where] = end * (BASELINE + 0.1), side * (0.3 + 1.2 * draw["stand"]), 1.0 + 0.2 * draw["pause"]
    play.velocity[:, where] = 0.0
    play.gravity[where] = 0.0
    play.toss_at[where] = now + 0.3 + 0.6 * draw["hold"]
    play.hit_at[where] = play.point_at[where] = math.inf
    play.is_serve[where] = True


def toss(play: Play, where: np.ndarray, now: float) -> None:
    """Throw the ball up, and set the serve for when it has come down to the height of the racket."""
    draw = drawn(play, where)
    racket = 2.6 + 0.3 * draw["stand"]
    top = racket + 0.15 + 0.45 * draw["delay"]
    x, _, hand = play.position[:, where]
    play.velocity[0, where] = -0.3 * np.sign(x)
    play.velocity[2, where] = np.sqrt(2 * GRAVITY * (top - hand))
    play.gravity[where] = GRAVITY
    play.toss_at[where] = math.inf
    play.hit_at[where] = now + np.sqrt(2 * (top - hand) / GRAVITY) + np.sqrt(2 * (top - racket) / GRAVITY)


def strike(play: Play, where: np.ndarray, now: float) -> None:
    """Serve or return, over the net to a place on the other side or into the net; and set the volley that answers."""
    draw, serve = drawn(play, where), play.is_serve[where]
    x, y, z = play.position[:, where]
    to_x = -np.sign(x) * np.where(serve, 3.6 + 3.1 * draw["depth"], 5.0 + 7.3 * np.sqrt(draw["depth"]))
    to_y = np.where(serve, -np.sign(y) * (0.3 + 3.7 * draw["width"]), 4.3 * (2 * draw["width"] - 1))
    to_z = np.full(len(where), RADIUS)
    speed = np.where(serve, 30 + 12 * draw["pace"], 16 + 11 * draw["pace"])  # mean over the flight
    # Without drag a flight of t seconds passes the net, a share s of its way, at z (1 - s) + g t^2 s (1 - s) / 2.
    over = np.where(serve, 0.1 + 0.3 * draw["clearance"], 0.4 - 0.6 * np.log1p(-0.99 * draw["clearance"]))
    share = np.abs(x) / np.abs(x - to_x)
    rise = np.maximum(net_height(y + share * (to_y - y)) + over - z * (1 - share), 0.0)
    seconds = np.maximum(np.hypot(to_x - x, to_y - y) / speed, np.sqrt(2 * rise / (GRAVITY * share * (1 - share))))

    fault = draw["fault"] < NET_FAULTS
    to_x[fault] = 0.0
    to_y[fault] = (y + share * (to_y - y))[fault]
    to_z[fault] = (0.3 + 0.45 * draw["clearance"])[fault]
    seconds[fault] = np.hypot(x, to_y - y)[fault] / speed[fault]

    play.velocity[:, where] = aim(np.stack([to_x - x, to_y - y, to_z - z]), seconds)
    volley = ~serve & ~fault & (draw["answer"] < VOLLEYS) & (over < 1.2)
    reached = seconds * (share + (1 - share) * (0.3 + 0.4 * draw["delay"]))
    play.hit_at[where] = np.where(volley, now + reached, math.inf)
    play.out_from[where] = np.where(serve, SERVICE_LINE, BASELINE)
    play.is_serve[where] = False
    play.num_strokes[where] += 1


def aim(displacement: np.ndarray, seconds: np.ndarray) -> np.ndarray:
    """The velocity (3, K) that carries a ball along `displacement` (3, K) in about that time, against drag.

    Horizontally the path under quadratic drag alone is ln(1 + k v t) / k, solved for v. Vertically the drag is taken as
    linear, at the rate of the mean horizontal speed, which has a closed form. At that time the ball is up to 2 dm off.
    """
    distance = np.hypot(displacement[0], displacement[1])
    speed = np.expm1(DRAG * distance) / (DRAG * seconds)
    rate = DRAG * distance / seconds
    up = (displacement[2] + GRAVITY * seconds / rate) * rate / -np.expm1(-rate * seconds) - GRAVITY / rate
    return np.stack([displacement[0] / distance * speed, displacement[1] / distance * speed, up])


def fly(
    position: np.ndarray, velocity: np.ndarray, gravity: np.ndarray, seconds: float, drag: float = DRAG
) -> tuple[np.ndarray, np.ndarray]:
    """position (3, N) m and velocity (3, N) m/s after `seconds`: quadratic drag (1/m) and gravity (N,) m/s2, both
    constant over the step.

    Exact without drag, and with it under 1 cm off after a whole flight in steps of STEP_SECONDS.
    """
    speed = np.sqrt(velocity[0] ** 2 + velocity[1] ** 2 + velocity[2] ** 2)
    after = velocity / (1 + seconds * drag * speed)  # exact for drag alone
    after[2] -= seconds * gravity
    return position + 0.5 * seconds * (velocity + after), after


def meets_net(before: np.ndarray, after: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The K sequences whose ball meets the net on the straight way between two positions (3, N), and the share of the
    way by then."""
    crossed = np.flatnonzero((before[0] > 0) != (after[0] > 0))
    start, way = before[:, crossed], (after - before)[:, crossed]
    share = -start[0] / way[0]
    y, z = (start + share * way)[1:]
    caught = z - RADIUS < net_height(y)
    return crossed[caught], share[caught]


def net_height(y: np.ndarray) -> np.ndarray:
    """m; the net sags from the posts to the strap in the middle, here in straight lines."""
    return NET_CENTRE + (NET_POST - NET_CENTRE) * np.minimum(np.abs(y) / POST, 1.0)


def stop(play: Play, where: np.ndarray, before: np.ndarray, share: np.ndarray, now: float) -> None:
    """The net takes nearly all speed, and the ball drops on the side it came from: the rally is over."""
    draw = drawn(play, where)
    play.position[:, where] = before + share * (play.position[:, where] - before)
    play.position[0, where] = RADIUS * np.sign(before[0])
    play.velocity[0, where] *= -0.04 - 0.06 * draw["pace"]
    play.velocity[1:, where] *= 0.2
    play.hit_at[where] = math.inf
    play.point_at[where] = now + 1.2 + 1.2 * draw["pause"]


def meets_ground(before: np.ndarray, after: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The K sequences whose ball meets the ground between two positions (3, N), and the share of the way by then."""
    landed = np.flatnonzero(after[2] < RADIUS)
    start, end = before[2, landed], after[2, landed]
    return landed, (start - RADIUS) / (start - end)


def bounce(play: Play, where: np.ndarray, share: np.ndarray, now: float) -> np.ndarray:
    """Bounce, and after a stroke's first bounce decide whether the ball is hit back.

    Returns (K,) bool: whether the camera can see the ball rise.

    The ball slides, which costs the horizontal speed friction x change of vertical speed, until it grips, with GRIP of
    that speed left (Brody 1984; Cross 2002 on how real balls grip). It comes without spin. A ball too weak, or too far
    out, to be seen rising is left at once for that of the next point.
    """
    draw = drawn(play, where)
    restitution = RESTITUTION[0] + (RESTITUTION[1] - RESTITUTION[0]) * draw["ground"]
    friction = FRICTION[0] + (FRICTION[1] - FRICTION[0]) * draw["stand"]
    rest = (1 - share) * STEP_SECONDS  # s of this step after the bounce
    vx, vy, vz = play.velocity[:, where]
    impact = -(vz + GRAVITY * rest)
    rebound = restitution * impact
    lost = friction * (impact + rebound) / np.maximum(np.hypot(vx, vy), 1e-9)
    kept = np.maximum(1 - lost, GRIP)
    play.velocity[:, where] = kept * vx, kept * vy, rebound - GRAVITY * rest
    play.position[2, where] = RADIUS + rest * (rebound - 0.5 * GRAVITY * rest)

    x, y, _ = play.position[:, where]
    first = np.isinf(play.point_at[where])
    rises: np.ndarray = (rebound >= LOWEST_REBOUND) & (np.abs(x) < GROUND_X - 1) & (np.abs(y) < GROUND_Y - 1)
    is_in = (np.abs(x) < play.out_from[where]) & (np.abs(y) < SIDELINE)
    back = first & rises & is_in & (draw["answer"] < RETURNS)
    # Hit before it comes down again, and before it has flown past the player.
    in_reach = (BASELINE + 3.5 * draw["stand"] - np.abs(x)) / np.maximum(np.abs(kept * vx), 1e-9)
    delay = np.maximum(np.minimum(2 * rebound / GRAVITY * (0.35 + 0.5 * draw["delay"]), in_reach), 0.2)
    play.hit_at[where] = np.where(back, now + delay, math.inf)
    over = np.where(first, now + 0.8 + 1.2 * draw["pause"], np.maximum(play.point_at[where], now + 0.1))
    play.point_at[where] = np.where(rises, np.where(back, math.inf, over), now)
    return rises


def observe(
    path: np.ndarray, noise: float, missed: float, occlusion: float, generators: list[np.random.Generator]
) -> np.ndarray:
    """values (N, T, 3) float32, as `simulate` gives them, of a path (N, T, 3) in metres.

    generators: one for noise, one for misses, one for occlusions.
    """
    noise_draws, missed_draws, occlusion_draws = generators
    num_sequences, num_steps, _ = path.shape
    image = project(path)
    size = np.array([IMAGE_WIDTH, IMAGE_HEIGHT])
    seen = ((image >= 0) & (image < size)).all(axis=-1)
    seen &= missed_draws.random((num_sequences, num_steps)) >= missed

    occluded, start, length = occlusion_draws.random((num_sequences, 3)).T
    shortest, longest = OCCLUSION_FRAMES
    length = np.floor(shortest + (longest - shortest + 1) * length)
    start = np.floor(start * (num_steps - length + 1))
    frames = np.arange(num_steps)
    hidden = (frames >= start[:, None]) & (frames < (start + length)[:, None])
    seen &= ~(hidden & (occluded < occlusion)[:, None])

    values = np.zeros((num_sequences, num_steps, len(FEATURES)), dtype=np.float32)
    values[..., :2] = image + noise * noise_draws.standard_normal(image.shape)
    values[..., 2] = 1.0
    values[~seen] = 0.0
    return values


def project(path: np.ndarray) -> np.ndarray:
    """Image positions (N, T, 2) in pixels of points (N, T, 3) in metres, seen by a pinhole camera that stands still."""
    x, y, z = np.moveaxis(path - np.array(CAMERA), -1, 0)
    # Written out: a matrix product may round differently with the number of rows.
    depth = x * math.cos(TILT) - z * math.sin(TILT)
    below = -x * math.sin(TILT) - z * math.cos(TILT)
    u = IMAGE_WIDTH / 2 - FOCAL_LENGTH * y / depth
    v = IMAGE_HEIGHT / 2 + FOCAL_LENGTH * below / depth
    return np.stack([u, v], axis=-1)
