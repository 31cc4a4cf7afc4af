"""Shell scripts: the commands that they would run, and the origin of each word.

`read_scripts` reads scripts one after another in one shell and returns `Scripts`. `Around`
describes their surroundings.
"""

from planner.launch.languages.shell.calls import Starters as Starters
from planner.launch.languages.shell.calls import assignments as assignments
from planner.launch.languages.shell.expansions import evaluate_arithmetic as evaluate_arithmetic
from planner.launch.languages.shell.script import Script as Script
from planner.launch.languages.shell.script import read_scripts as read_scripts
from planner.launch.languages.shell.state import OF_THE_MACHINE as OF_THE_MACHINE
from planner.launch.languages.shell.state import Around as Around
from planner.launch.languages.shell.state import Command as Command
from planner.launch.languages.shell.state import Scripts as Scripts
from planner.launch.languages.shell.state import Site as Site
from planner.launch.languages.shell.state import Undecided as Undecided
