"""Shell scripts and Python files read as text: their effect is worked out, and they are never run.

This package knows nothing about training, launchers or frameworks, and imports nothing else of the
planner. Callers pass in the programs that start others, the variables of schedulers, the places of
files, and functions that need special treatment. `text` records for each character where it was
written, even through variables and quoting. A part that reading cannot determine stays in the
result as unknown, with the reason; it is never guessed. `limits` stops the reading of scripts that
never end.

**Shell** (`shell`, based on tree-sitter's grammar of bash)

* Variables: assignments, `+=`, arrays and tables, defaults (`${X:-8}`), lengths, indirection,
  prefixes and suffixes, replacements without wildcards, parts, upper and lower case, `read`,
  `mapfile` and `printf -v` of a known text. The caller's values override the script's. A
  variable that is never set is unknown, or empty if a test only asks for it.
* Arithmetic: whole numbers of 64 bits, with their operators and comparisons.
* Branches: `if`, `case`, `&&` and `||` whose tests compare known values or look for a file that is
  there. Any other is reported as undecided, with what would decide it; the caller may have it read
  again with another branch. A branch that only ends the script with an error is not taken.
* Loops: the first round of a `for` over known words, and of a `while` whose test is met. Others are
  skipped, and the variables that they set are unknown afterwards.
* Functions with their arguments, `shift` and `return`; recursion is not followed.
* Command substitutions: `echo`, `printf`, `cat` of a file that is there, `expr`, `bc`, `basename`
  and `dirname`, with filters that split, count or join. Output of other programs is not known.
* Other scripts: `source`, `bash x.sh`, `bash -c "..."`, `eval`, `ssh host ...`, here-documents that
  a shell reads, and those that write a file, if their text is available.
* The environment that a command would see: exported variables, assignments in front of it, and
  those that the options of its starter pass on. `exit` and `set -e` end a script if they are sure
  to be reached.
* Not supported: processes and their order, files that programs write, traps, options of the shell,
  wildcards of file names.

**Python** (`python`, based on the syntax tree of `ast`)

* Assignments, arithmetic, comparisons, texts, lists, tables, comprehensions of one loop, and the
  built-in functions and methods that configurations use.
* Calls of functions and classes whose source is in the file or in a module beside it, dataclass
  defaults included. A call of any other function becomes a `Record` of its name and arguments.
* Branches whose tests are known, others are left out; loops over known lists of moderate length.
* Not supported: inheritance of methods, decorators, generators, `while`, exceptions, anything that
  the standard library or an installed package computes.
"""
