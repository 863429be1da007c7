"""Simulate tennis rallies as a broadcast camera sees them: the data of the workload `rally`.

Input: the numbers of sequences and frames, a seed, and the errors of the detector. Output: values (N, T, 3), the ball's
position in the image for each frame, and labels (N, T), the event for each frame. The simulation draws random strokes,
computes the flight of the ball in three dimensions, projects it onto the image, and adds the detector's errors (noise,
missed frames, occlusions). Loops run over time steps, never over sequences. Time and memory are linear in N.

Sources of the physics. Court, net and ball: ITF Rules of Tennis (mass 56.0 to 59.4 g, diameter 6.54 to 6.86 cm, rebound
135 to 147 cm from 254 cm). Drag is proportional to the square of the speed: Mehta 1985, Aerodynamics of Sports Balls,
Annu. Rev. Fluid Mech. 17, 151-189. Bounce: Brody 1984, That's How the Ball Bounces, Phys. Teach. 22, 494-497; Cross
2002, Grip-Slip Behavior of a Bouncing Ball, Am. J. Phys. 70, 1093-1102. Overview: Brody, Cross and Lindsey 2002, The
Physics and Technology of Tennis. The simulation has no spin, no wind, and no balls that touch the net and pass it.

Shapes: N sequences, T frames, K selected sequences. Coordinates in metres: x along the court from the net, y across the
court from the middle line, z up from the ground.
"""

import math
from collections.abc import Sequence

import numpy as np

EVENTS = ("none", "serve", "hit", "bounce", "net")  # class numbers 0..4
NONE, SERVE, HIT, BOUNCE, NET = range(len(EVENTS))
FEATURES = ("u", "v", "visible")

# Frame rate and size of TrackNet's public broadcast videos (Huang et al. 2019, arXiv:1907.03698).
FRAMES_PER_SECOND = 30.0
IMAGE_WIDTH, IMAGE_HEIGHT = 1280, 720  # pixels
# Behind one baseline and high. From a height of 12 m, a ball that is hit at the far end would not seem to move: it
# rises and comes nearer at the same time.
CAMERA = (-36.0, 0.0, 20.0)  # m
TILT = math.atan2(20.0, 36.0 - 3.7)  # radians downwards; the camera looks at the point 3.7 m in front of the net
FOCAL_LENGTH = 1520.0  # pixels

BASELINE, SIDELINE, SERVICE_LINE = 23.77 / 2, 8.23 / 2, 6.40  # m from the net, from the middle line, from the net
NET_CENTRE, NET_POST, POST = 0.914, 1.07, SIDELINE + 0.914  # m: height in the middle; height and y of the singles posts
GROUND_X, GROUND_Y = 17.0, 8.5  # m: the visible ground; a ball that leaves it is out of play

GRAVITY = 9.81  # m/s2
RADIUS, MASS = 0.033, 0.0577  # m, kg
# Air density 1.2 kg/m3. Drag coefficient 0.55: Cross and Lindsey 2014 (Measurements of Drag and Lift on Tennis Balls in
# Flight, Sports Engineering) found 0.51 for new balls; Mehta, Alam and Subic 2008 (Review of Tennis Ball Aerodynamics)
# report 0.6 to 0.7 in wind tunnels.
DRAG = 1.2 * 0.55 * math.pi * RADIUS**2 / (2 * MASS)  # 1/m
# Square roots of the ITF rebound over the height of the drop: 0.729 and 0.761.
RESTITUTION = (math.sqrt(1.35 / 2.54), math.sqrt(1.47 / 2.54))
FRICTION = (0.5, 0.75)  # coefficient between ball and court, from fast to slow courts
# Share of the horizontal speed that a thin hollow sphere keeps if it starts without spin and leaves rolling:
# 1 / (1 + 2/3).
GRIP = 0.6
LOWEST_REBOUND = 2.0  # m/s: slower balls rise less than 20 cm, which the noise hides; the next point starts instead

SUBSTEPS = 4  # per frame
STEP_SECONDS = 1 / (FRAMES_PER_SECOND * SUBSTEPS)
LEAD_FRAMES = 90  # simulated before the window, so that a window can start at any moment of a rally
EDGE = 2  # frames without labels at both ends of a window: an event is visible only with frames before and after it
OCCLUSION_FRAMES = (3, 8)
BLOCK = 8192  # sequences simulated together: their state fits into the cache

# Probabilities that a stroke goes into the net (higher than in reality, so that the class is not rare), that a stroke
# is volleyed, and that a ball in the court is hit back.
NET_FAULTS, VOLLEYS, RETURNS = 0.13, 0.15, 0.88

# Each stroke uses one uniform random number of each name. They also determine the events before the stroke: the bounce,
# or the wait and the toss before a serve.
RANDOM_NUMBERS = "hold end stand pace depth width clearance fault answer delay ground pause".split()


class Balls:
    """The state of the balls of N sequences at one moment, and the times of their next events in seconds (inf: none).

    At the start every ball is in a server's hand. The toss is at a random time between the start of the lead and 0.7 s
    after the start of the window. random_numbers (N, strokes, len(RANDOM_NUMBERS)) are in [0, 1).
    """

    def __init__(self, random_numbers: np.ndarray) -> None:
        num_sequences, start = len(random_numbers), -LEAD_FRAMES / FRAMES_PER_SECOND
        self.random_numbers = random_numbers
        self.position = np.zeros((3, num_sequences))  # m
        self.velocity = np.zeros((3, num_sequences))  # m/s
        self.gravity = np.zeros(num_sequences)  # m/s2; 0 while a ball is held
        self.toss_at = np.full(num_sequences, math.inf)
        self.hit_at = np.full(num_sequences, math.inf)
        self.point_at = np.full(num_sequences, math.inf)  # start of the next point; finite only after the rally
        self.is_serve = np.zeros(num_sequences, dtype=bool)  # True: the next stroke is a serve
        self.out_from = np.zeros(num_sequences)  # m: a ball that lands farther from the net is out
        self.num_strokes = np.zeros(num_sequences, dtype=np.int64)
        start_points(self, np.arange(num_sequences), start)
        self.toss_at = start + random_numbers[:, 0, RANDOM_NUMBERS.index("hold")] * (0.7 - start)


def simulate(
    num_sequences: int, num_steps: int, seed: int, noises: Sequence[float], missed: float, occlusion: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return values (len(noises), N, T, 3) float32 in the order of FEATURES, and labels (N, T) int64, indices into
    EVENTS.

    u, v: position in pixels from the upper left corner of a 1280 x 720 image. visible: 1.0 if the detector found the
    ball, else 0.0 (outside the image, missed or occluded); then u and v are 0. An event belongs to the nearest frame;
    if two events have the same frame, the later one is used. The first and last EDGE frames have no event.

    `noises`: standard deviations of u and v in pixels. `missed`: probability that a frame has no detection.
    `occlusion`: probability that a sequence has an occlusion of 3 to 8 consecutive frames.

    The same arguments give the same arrays. The first sequences do not depend on N. Noise, missed frames and occlusions
    have separate generators: a change of one of these settings does not change the rallies or the effect of the other
    two. Another T gives other rallies. Other machines and versions of numpy may round logarithms differently, so the
    last digits may differ.
    """
    values = np.empty((len(noises), num_sequences, num_steps, len(FEATURES)), dtype=np.float32)
    labels = np.empty((num_sequences, num_steps), dtype=np.int64)
    for block, start in enumerate(range(0, num_sequences, BLOCK)):
        rows = slice(start, min(start + BLOCK, num_sequences))
        # The seed of a block depends on its index, and its random numbers are drawn sequence by sequence. So the first
        # sequences of a block do not depend on its size.
        streams = np.random.SeedSequence(seed, spawn_key=(block,)).spawn(4)
        path, labels[rows] = rallies(rows.stop - start, num_steps, np.random.default_rng(streams[0]))
        for number, noise in enumerate(noises):
            generators = [np.random.default_rng(stream) for stream in streams[1:]]
            values[number, rows] = observe(path, noise, missed, occlusion, generators)
    return values, labels


def rallies(num_sequences: int, num_steps: int, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Simulate rallies without errors of the detector: the ball's path (N, T, 3) in metres, and labels (N, T) int64.

    The simulation starts LEAD_FRAMES before the window with the ball in a server's hand. So a window may start before a
    serve, in a rally or after its end.
    """
    # This is more than the number of strokes in that time. If there were more strokes, the numbers would be reused.
    max_strokes = (LEAD_FRAMES + num_steps) // 8 + 2
    balls = Balls(generator.random((num_sequences, max_strokes, len(RANDOM_NUMBERS))))
    path = np.empty((num_steps, 3, num_sequences))
    labels = np.zeros((num_sequences, num_steps), dtype=np.int64)

    def label(sequences: np.ndarray, steps: np.ndarray, events: np.ndarray | int) -> None:
        frames = np.rint(steps / SUBSTEPS).astype(np.int64)
        inside = (frames >= EDGE) & (frames < num_steps - EDGE)
        labels[sequences[inside], frames[inside]] = np.broadcast_to(events, sequences.shape)[inside]

    for step in range(-LEAD_FRAMES * SUBSTEPS, num_steps * SUBSTEPS):
        now = step * STEP_SECONDS
        start_points(balls, np.flatnonzero(balls.point_at <= now), now)
        toss(balls, np.flatnonzero(balls.toss_at <= now), now)
        struck = np.flatnonzero(balls.hit_at <= now)
        label(struck, np.full(len(struck), step), np.where(balls.is_serve[struck], SERVE, HIT))
        strike(balls, struck, now)
        if step >= 0 and step % SUBSTEPS == 0:
            path[step // SUBSTEPS] = balls.position

        before = balls.position
        balls.position, balls.velocity = fly(before, balls.velocity, balls.gravity, STEP_SECONDS)
        stopped, share = meets_net(before, balls.position)
        stop(balls, stopped, before[:, stopped], share, now)
        label(stopped, step + share, NET)
        landed, share = meets_ground(before, balls.position)
        rises = bounce(balls, landed, share, now)
        label(landed[rises], (step + share)[rises], BOUNCE)
        x, y, _ = balls.position
        away = np.flatnonzero((np.abs(x) > GROUND_X) | (np.abs(y) > GROUND_Y))
        balls.point_at[away], balls.hit_at[away] = now, math.inf
    return path.transpose(2, 0, 1), labels


def random_numbers_at(balls: Balls, where: np.ndarray) -> dict[str, np.ndarray]:
    """Return the random numbers (K,) for the next stroke of the sequences `where` (K,), by name."""
    rows = balls.random_numbers[where, balls.num_strokes[where] % balls.random_numbers.shape[1]]
    return dict(zip(RANDOM_NUMBERS, rows.T, strict=True))


def start_points(balls: Balls, where: np.ndarray, now: float) -> None:
    """Place a ball at rest in a server's hand behind a baseline, left or right of the middle."""
    random = random_numbers_at(balls, where)
    end = np.where(random["end"] < 0.5, -1.0, 1.0)
    side = np.where(random["end"] % 0.5 < 0.25, -1.0, 1.0)
    balls.position[:, where] = end * (BASELINE + 0.1), side * (0.3 + 1.2 * random["stand"]), 1.0 + 0.2 * random["pause"]
    balls.velocity[:, where] = 0.0
    balls.gravity[where] = 0.0
    balls.toss_at[where] = now + 0.3 + 0.6 * random["hold"]
    balls.hit_at[where] = balls.point_at[where] = math.inf
    balls.is_serve[where] = True


def toss(balls: Balls, where: np.ndarray, now: float) -> None:
    """Throw the ball up, and schedule the serve for the time when the ball falls back to the height of the racket."""
    random = random_numbers_at(balls, where)
    racket = 2.6 + 0.3 * random["stand"]
    top = racket + 0.15 + 0.45 * random["delay"]
    x, _, hand = balls.position[:, where]
    balls.velocity[0, where] = -0.3 * np.sign(x)
    balls.velocity[2, where] = np.sqrt(2 * GRAVITY * (top - hand))
    balls.gravity[where] = GRAVITY
    balls.toss_at[where] = math.inf
    balls.hit_at[where] = now + np.sqrt(2 * (top - hand) / GRAVITY) + np.sqrt(2 * (top - racket) / GRAVITY)


def strike(balls: Balls, where: np.ndarray, now: float) -> None:
    """Serve or return: aim at a point on the other side or into the net, and schedule a volley if there is one."""
    random, serve = random_numbers_at(balls, where), balls.is_serve[where]
    x, y, z = balls.position[:, where]
    to_x = -np.sign(x) * np.where(serve, 3.6 + 3.1 * random["depth"], 5.0 + 7.3 * np.sqrt(random["depth"]))
    to_y = np.where(serve, -np.sign(y) * (0.3 + 3.7 * random["width"]), 4.3 * (2 * random["width"] - 1))
    to_z = np.full(len(where), RADIUS)
    speed = np.where(serve, 30 + 12 * random["pace"], 16 + 11 * random["pace"])  # mean over the flight
    # Without drag, a flight of t seconds crosses the net after a share s of its distance, at the height
    # z (1 - s) + g t^2 s (1 - s) / 2.
    over = np.where(serve, 0.1 + 0.3 * random["clearance"], 0.4 - 0.6 * np.log1p(-0.99 * random["clearance"]))
    share = np.abs(x) / np.abs(x - to_x)
    rise = np.maximum(net_height(y + share * (to_y - y)) + over - z * (1 - share), 0.0)
    seconds = np.maximum(np.hypot(to_x - x, to_y - y) / speed, np.sqrt(2 * rise / (GRAVITY * share * (1 - share))))

    fault = random["fault"] < NET_FAULTS
    to_x[fault] = 0.0
    to_y[fault] = (y + share * (to_y - y))[fault]
    to_z[fault] = (0.3 + 0.45 * random["clearance"])[fault]
    seconds[fault] = np.hypot(x, to_y - y)[fault] / speed[fault]

    balls.velocity[:, where] = aim(np.stack([to_x - x, to_y - y, to_z - z]), seconds)
    volley = ~serve & ~fault & (random["answer"] < VOLLEYS) & (over < 1.2)
    reached = seconds * (share + (1 - share) * (0.3 + 0.4 * random["delay"]))
    balls.hit_at[where] = np.where(volley, now + reached, math.inf)
    balls.out_from[where] = np.where(serve, SERVICE_LINE, BASELINE)
    balls.is_serve[where] = False
    balls.num_strokes[where] += 1


def aim(displacement: np.ndarray, seconds: np.ndarray) -> np.ndarray:
    """Return the initial velocity (3, K) that moves a ball by `displacement` (3, K) m in about `seconds` (K,).

    Horizontally, the distance under quadratic drag alone is ln(1 + k v t) / k, which is solved for v. Vertically, the
    drag is approximated as linear, with the rate at the mean horizontal speed, which has a closed form. The error of
    the final position is at most 0.2 m.
    """
    distance = np.hypot(displacement[0], displacement[1])
    speed = np.expm1(DRAG * distance) / (DRAG * seconds)
    rate = DRAG * distance / seconds
    up = (displacement[2] + GRAVITY * seconds / rate) * rate / -np.expm1(-rate * seconds) - GRAVITY / rate
    return np.stack([displacement[0] / distance * speed, displacement[1] / distance * speed, up])


def fly(
    position: np.ndarray, velocity: np.ndarray, gravity: np.ndarray, seconds: float, drag: float = DRAG
) -> tuple[np.ndarray, np.ndarray]:
    """Return position (3, N) in m and velocity (3, N) in m/s after `seconds`.

    `drag` is quadratic, in 1/m; gravity (N,) is in m/s2. The result is exact without drag. With drag, the error after a
    whole flight in steps of STEP_SECONDS is below 1 cm.
    """
    speed = np.sqrt(velocity[0] ** 2 + velocity[1] ** 2 + velocity[2] ** 2)
    after = velocity / (1 + seconds * drag * speed)  # exact for drag alone
    after[2] -= seconds * gravity
    return position + 0.5 * seconds * (velocity + after), after


def meets_net(before: np.ndarray, after: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the indices (K,) of the balls that hit the net between two positions (3, N), and the share of the step
    (K,) at which they do.
    """
    crossed = np.flatnonzero((before[0] > 0) != (after[0] > 0))
    start, displacement = before[:, crossed], (after - before)[:, crossed]
    share = -start[0] / displacement[0]
    y, z = (start + share * displacement)[1:]
    caught = z - RADIUS < net_height(y)
    return crossed[caught], share[caught]


def net_height(y: np.ndarray) -> np.ndarray:
    """Height in m: a straight line from each post down to the strap in the middle."""
    return NET_CENTRE + (NET_POST - NET_CENTRE) * np.minimum(np.abs(y) / POST, 1.0)


def stop(balls: Balls, where: np.ndarray, before: np.ndarray, share: np.ndarray, now: float) -> None:
    """Stop balls at the net: they lose nearly all speed and drop on the side from which they came. The rally ends."""
    random = random_numbers_at(balls, where)
    balls.position[:, where] = before + share * (balls.position[:, where] - before)
    balls.position[0, where] = RADIUS * np.sign(before[0])
    balls.velocity[0, where] *= -0.04 - 0.06 * random["pace"]
    balls.velocity[1:, where] *= 0.2
    balls.hit_at[where] = math.inf
    balls.point_at[where] = now + 1.2 + 1.2 * random["pause"]


def meets_ground(before: np.ndarray, after: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the indices (K,) of the balls that hit the ground between two positions (3, N), and the share of the step
    (K,) at which they do.
    """
    landed = np.flatnonzero(after[2] < RADIUS)
    start, end = before[2, landed], after[2, landed]
    return landed, (start - RADIUS) / (start - end)


def bounce(balls: Balls, where: np.ndarray, share: np.ndarray, now: float) -> np.ndarray:
    """Bounce, and decide after the first bounce of a stroke whether the ball is hit back.

    Returns (K,) bool: whether the camera sees the ball rise. If not (too slow, or too far outside), the next point
    starts at once.

    A sliding ball loses the horizontal speed friction x change of vertical speed, until it grips. It then has the share
    GRIP of its speed (Brody 1984; Cross 2002 on how real balls grip). The ball arrives without spin.
    """
    random = random_numbers_at(balls, where)
    restitution = RESTITUTION[0] + (RESTITUTION[1] - RESTITUTION[0]) * random["ground"]
    friction = FRICTION[0] + (FRICTION[1] - FRICTION[0]) * random["stand"]
    rest = (1 - share) * STEP_SECONDS  # seconds of this step after the bounce
    vx, vy, vz = balls.velocity[:, where]
    impact = -(vz + GRAVITY * rest)
    rebound = restitution * impact
    lost_share = friction * (impact + rebound) / np.maximum(np.hypot(vx, vy), 1e-9)
    slowdown = np.maximum(1 - lost_share, GRIP)
    balls.velocity[:, where] = slowdown * vx, slowdown * vy, rebound - GRAVITY * rest
    balls.position[2, where] = RADIUS + rest * (rebound - 0.5 * GRAVITY * rest)

    x, y, _ = balls.position[:, where]
    first = np.isinf(balls.point_at[where])
    rises: np.ndarray = (rebound >= LOWEST_REBOUND) & (np.abs(x) < GROUND_X - 1) & (np.abs(y) < GROUND_Y - 1)
    is_in = (np.abs(x) < balls.out_from[where]) & (np.abs(y) < SIDELINE)
    back = first & rises & is_in & (random["answer"] < RETURNS)
    # The player hits the ball before it comes down again and before it flies past.
    in_reach = (BASELINE + 3.5 * random["stand"] - np.abs(x)) / np.maximum(np.abs(slowdown * vx), 1e-9)
    delay = np.maximum(np.minimum(2 * rebound / GRAVITY * (0.35 + 0.5 * random["delay"]), in_reach), 0.2)
    balls.hit_at[where] = np.where(back, now + delay, math.inf)
    over = np.where(first, now + 0.8 + 1.2 * random["pause"], np.maximum(balls.point_at[where], now + 0.1))
    balls.point_at[where] = np.where(rises, np.where(back, math.inf, over), now)
    return rises


def observe(
    path: np.ndarray, noise: float, missed: float, occlusion: float, generators: list[np.random.Generator]
) -> np.ndarray:
    """path (N, T, 3) in metres -> values (N, T, 3) float32, as in `simulate`.

    `generators`: one each for noise, missed frames and occlusions.
    """
    for_noise, for_missed, for_occlusions = generators
    num_sequences, num_steps, _ = path.shape
    image = project(path)
    size = np.array([IMAGE_WIDTH, IMAGE_HEIGHT])
    seen = ((image >= 0) & (image < size)).all(axis=-1)
    seen &= for_missed.random((num_sequences, num_steps)) >= missed

    occluded, start, length = for_occlusions.random((num_sequences, 3)).T
    shortest, longest = OCCLUSION_FRAMES
    length = np.floor(shortest + (longest - shortest + 1) * length)
    start = np.floor(start * (num_steps - length + 1))
    frames = np.arange(num_steps)
    hidden = (frames >= start[:, None]) & (frames < (start + length)[:, None])
    seen &= ~(hidden & (occluded < occlusion)[:, None])

    values = np.zeros((num_sequences, num_steps, len(FEATURES)), dtype=np.float32)
    values[..., :2] = image + noise * for_noise.standard_normal(image.shape)
    values[..., 2] = 1.0
    values[~seen] = 0.0
    return values


def project(path: np.ndarray) -> np.ndarray:
    """path (N, T, 3) in metres -> positions (N, T, 2) in pixels in the image of a fixed pinhole camera."""
    x, y, z = np.moveaxis(path - np.array(CAMERA), -1, 0)
    # No matrix product: its rounding may depend on the number of rows.
    depth = x * math.cos(TILT) - z * math.sin(TILT)
    below = -x * math.sin(TILT) - z * math.cos(TILT)
    u = IMAGE_WIDTH / 2 - FOCAL_LENGTH * y / depth
    v = IMAGE_HEIGHT / 2 + FOCAL_LENGTH * below / depth
    return np.stack([u, v], axis=-1)
