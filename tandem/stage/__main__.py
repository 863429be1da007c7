import atexit
import sys

from tandem.stage import exit_at_once, main

ending: list[int] = []
atexit.register(exit_at_once, ending)
ending.append(main(sys.argv[1:]))
sys.exit(ending[0])
