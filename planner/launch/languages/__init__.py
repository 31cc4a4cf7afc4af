"""Shell scripts and Python files read as text: their effect is worked out, and they are never run.

Nothing here knows of training, launchers or frameworks, and nothing imports the rest of the
planner: a caller hands in the programs that start others, the variables of schedulers, the places
of files and the functions with a meaning of their own. `text` keeps for each character the place
where it was written, through variables and quoting. A part that reading cannot tell stays in the
result as unknown, with the reason; it is never guessed. `limits` ends the reading of scripts that
never end.

**Shell** (`shell`, over tree-sitter's grammar of bash)

* Variables: assignments, `+=`, arrays and tables, defaults (`${X:-8}`), lengths, indirection,
  prefixes and suffixes, replacements without wildcards, parts, upper and lower case, `read`,
  `mapfile` and `printf -v` of a known text. The caller's values win over the script's; a
  variable that is never set is not known, and empty where a test only asks for it.
* Arithmetic: whole numbers of 64 bits, with their operators and comparisons.
* Branches: `if`, `case`, `&&` and `||` whose tests compare known values or look for a file that is
  there. Any other is reported as undecided, with what would decide it; the caller may have it read
  again with another branch. A branch that only ends the script with an error is not taken.
* Loops: the first round of a `for` over known words, and of a `while` whose test is met. Others are
  skipped, and what they set is not known behind them.
* Functions with their arguments, `shift` and `return`; recursion is not followed.
* Command substitutions: `echo`, `printf`, `cat` of a file that is there, `expr`, `bc`, `basename`
  and `dirname`, with filters that split, count or join. Output of other programs is not known.
* Other scripts: `source`, `bash x.sh`, `bash -c "..."`, `eval`, `ssh host ...`, here-documents that
  a shell reads, and those that write a file, where the text is there to be read.
* The environment that a command would see: exported variables, those before it, and those that the
  options of its starter carry. `exit` and `set -e` end a script where they are sure to be reached.
* Beyond reading: processes and their order, files that programs write, traps, options of the shell,
  wildcards of file names.

**Python** (`python`, over the syntax tree of `ast`)

* Assignments, arithmetic, comparisons, texts, lists, tables, comprehensions of one loop, and the
  built-in functions and methods that configurations use.
* Calls of functions and classes whose source is in the file or in a module beside it, dataclass
  defaults included. A call of a function that is not there becomes a `Record` of its name and
  arguments.
* Branches whose tests are known, others are left out; loops over known lists of moderate length.
* Beyond reading: inheritance of methods, decorators, generators, `while`, exceptions, anything that
  the standard library or an installed package computes.
"""
