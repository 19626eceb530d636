"""The shell reader: words keep their quoting, commands keep their structure, nothing makes it fail."""

import pytest

from paceline.diagnose.lint.job.shell.interpret import interpret
from paceline.diagnose.lint.job.shell.parser import parse
from paceline.diagnose.lint.job.shell.tree import (
    CaseStatement,
    Function,
    GroupStatement,
    If,
    LoopStatement,
    Simple,
)
from paceline.diagnose.lint.job.shell.values import BATCH, NODE, Symbols

KNOWN = {"SLURM_NNODES": "2", "SLURM_JOB_NUM_NODES": "2"}


def story(source):
    return interpret(parse(source), KNOWN, Symbols())


def commands(source):
    """Every command as it would be run, symbols as they are written."""
    told = story(source)
    return [[told.symbols.show(arg.text) for arg in call.args] for call in told.calls]


def last_arguments(source):
    told = story(source)
    return told, told.calls[-1].args


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("run a 'b c' \"d e\" f\\ g", ["run", "a", "b c", "d e", "f g"]),
        ("run a \\\n  b", ["run", "a", "b"]),
        ("x='a b'; run $x \"$x\"", ["run", "a", "b", "a b"]),
        ("x=1; x+=2; run $x", ["run", "12"]),
        ("a=(1 '2 3'); run \"${a[@]}\" ${#a[@]} \"${a[1]}\"", ["run", "1", "2 3", "2", "2 3"]),
        ("a=(1); a+=(2); run \"${a[@]}\"", ["run", "1", "2"]),
        ("a=(1 2); a+=3; run \"${a[@]}\"", ["run", "13", "2"]),
        ("a=($X); a+=3; run \"${a[@]}\"", ["run", "$X"]),
        ("run $((2 * SLURM_NNODES + 1))", ["run", "5"]),
        ("run $(expr 4 \\* $SLURM_NNODES)", ["run", "8"]),
        ("run $(scontrol show hostnames $L | wc -l)", ["run", "2"]),
        ("hosts=($(scontrol show hostnames $L)); run ${#hosts[@]}", ["run", "2"]),
        ("x=; run ${x:-y} ${x-z}", ["run", "y"]),
        ("run $'a\\tb' # a comment", ["run", "a\tb"]),
        ("x=file.tar.gz; run ${x%.gz} ${x#file}", ["run", "file.tar", ".tar.gz"]),
        ("A=1 B=2 run c > out 2>&1", ["run", "c"]),
        ("f() { run \"$1\" $#; }; f 'a b' c", ["run", "a b", "2"]),
        ("function f { run $@; }\nf a b", ["run", "a", "b"]),
        ("for i in one; do run $i; done", ["run", "one"]),
        ("for i in 1 2; do run $i; done", ["run", "$i"]),
        ("if [ $SLURM_NNODES -gt 1 ]; then run many; else run one; fi", ["run", "many"]),
        ("[[ $SLURM_NNODES == 1 ]] && run one || run many", ["run", "many"]),
        ("if (( SLURM_NNODES < 2 )); then run one; else run many; fi", ["run", "many"]),
        ("if ! [ $SLURM_NNODES -gt 1 ]; then run one; else run many; fi", ["run", "many"]),
        ("! [[ $SLURM_NNODES == 1 ]] && run many || run one", ["run", "many"]),
        ("if ! [ -f y ]; then x=1; else x=2; fi; run $x", ["run", "$x"]),
        ("x=1; if [ -f y ]; then x=2; fi; run $x", ["run", "$x"]),
        ("x=1; if [ -f y ]; then exit; x=2; fi; run $x", ["run", "1"]),
        ("bash -c 'run a; run b'", ["run", "b"]),
        ("eval \"run $SLURM_NNODES\"", ["run", "2"]),
        ("export x=1; bash -c 'run $x'", ["run", "1"]),
        ("x=1; bash -c \"run $x\"", ["run", "1"]),
        ("case $1 in a) run a;; *) run b;; esac", ["run", "b"]),
        ("run `echo x`", ["run", "x"]),
        ("cat > s.sh <<'EOF'\nrun inside\nEOF\nbash s.sh", ["run", "inside"]),
        ("bash <<EOF\nrun $SLURM_NNODES\nEOF", ["run", "2"]),
        ("{ run a; } | tee log; (run b)", ["run", "b"]),
        ("exit 0\nrun never", []),
    ],
)  # fmt: skip
def test_commands_come_out_as_bash_would_run_them(source, expected):
    found = commands(source)
    assert (found[-1] if found else []) == expected


@pytest.mark.parametrize(
    ("source", "place"),
    [
        ("srun bash -c 'run $SLURM_NODEID'", NODE),
        ('srun bash -c "run $SLURM_NODEID"', BATCH),
        ('srun bash -c "run \\$SLURM_NODEID"', NODE),
        ("srun run $SLURM_NODEID", BATCH),
        ("srun bash -c 'run '\"$SLURM_NODEID\"", BATCH),
        ("export R=$SLURM_NODEID; srun bash -c 'run $R'", BATCH),
        ("srun bash <<'EOF'\nrun $SLURM_NODEID\nEOF", NODE),
        ("srun bash <<EOF\nrun $SLURM_NODEID\nEOF", BATCH),
        ("C='run $SLURM_NODEID'; srun bash -c \"$C\"", NODE),
        ("bash -c 'run $SLURM_NODEID'", BATCH),
        ("start() { run $SLURM_NODEID; }\nstart", BATCH),
    ],
)
def test_it_is_known_who_fills_in_a_variable(source, place):
    told, args = last_arguments(source)
    (symbol,) = told.symbols.of(args[1].text)
    assert (symbol.name, symbol.place) == ("SLURM_NODEID", place)


def test_what_is_not_exported_is_lost_on_the_nodes():
    told, args = last_arguments("A=1; export B=2; srun bash -c 'run $A $B'")
    (symbol,) = told.symbols.of(args[1].text)
    assert (symbol.name, symbol.lost, args[2].text) == ("A", True, "2")


@pytest.mark.parametrize(
    ("source", "program", "wrappers"),
    [
        ("srun -N2 --ntasks 4 -c8 python t.py", "python", ("srun",)),
        ("srun --mpi=pmix -l -- torchrun t.py", "torchrun", ("srun",)),
        ("time nohup nice -n 5 python t.py", "python", ("nohup", "nice")),
        ("env -u X A=1 torchrun t.py", "torchrun", ("env",)),
        ("numactl -N 0 -m 0 python t.py", "python", ("numactl",)),
        ("timeout -k 5 60m torchrun t.py", "torchrun", ("timeout",)),
        ("apptainer exec --nv -B /a:/b i.sif accelerate launch t.py", "accelerate", ("apptainer",)),
        ("docker run --rm --gpus all image torchrun t.py", "torchrun", ("docker",)),
        ("conda run -n env --no-capture-output python t.py", "python", ("conda",)),
        ("uv run --with x torchrun t.py", "torchrun", ("uv",)),
        ("uv run t.py", "python", ("uv",)),
        ("poetry run deepspeed t.py", "deepspeed", ("poetry",)),
        (
            "srun --container-image=i.sqsh --container-mounts /a:/a composer t.py",
            "composer",
            ("srun",),
        ),
        ("srun $OPTIONS torchrun t.py", "torchrun", ("srun",)),
        ("mpirun -np 8 --bind-to none python t.py", "python", ("mpirun",)),
        ("L='srun -l torchrun'; $L t.py", "torchrun", ("srun",)),
        ("nsys profile -o x --trace=cuda python t.py", "python", ("nsys",)),
        ("exec srun python t.py", "python", ("exec", "srun")),
    ],
)
def test_the_program_is_seen_through_its_wrappers(source, program, wrappers):
    call = story(source).calls[-1]
    assert (call.name, call.wrappers) == (program, wrappers)


def test_a_script_is_a_tree():
    kinds = [type(node) for node in parse("a\n(b)\nif c; then d; fi\nwhile e; do f; done\ng() { h; }\ncase x in y) ;; esac").nodes]  # fmt: skip
    assert kinds == [Simple, GroupStatement, If, LoopStatement, Function, CaseStatement]


def test_lines_of_words_and_of_data_are_known():
    script = parse("a\nb \\\n  c 'd\ne'\ncat <<X\nf\nX\ng")
    lines = [(node.line, node.end_line) for node in script.nodes if isinstance(node, Simple)]
    assert lines == [(1, 1), (2, 4), (5, 5), (8, 8)]
    assert script.data_lines == {3, 4, 6}


@pytest.mark.parametrize(
    "source",
    ["a 'b", 'a "b', "a $(b", "a ${b", "if a; then b", "a $((1", "f() {", "for x in", "a `b"],
)
def test_what_cannot_be_read_ends_the_reading_and_keeps_what_came_before(source):
    script = parse("first\n" + source)
    assert script.error is not None or len(script.nodes) <= 2
    assert isinstance(script.nodes[0], Simple) and script.nodes[0].words[0].raw == "first"


@pytest.mark.parametrize(
    "opening", ["$(", "(", "{ ", "if ", '"$(', "${a:-", "$((", "`", "[[ ", "case x in ", "f() "]
)
def test_depth_is_limited(opening):
    story("echo " + opening * 3000)
    story(opening * 3000)


def test_growth_is_limited():
    assert len(story("a=xxxxxxxxxx\n" + "a=$a$a\n" * 80 + "run $a").calls[-1].args) == 2
    functions = "".join(f"f{n}() {{ f{n + 1}; f{n + 1}; }}\n" for n in range(40))
    assert story(functions + "f0").calls is not None


SYNTAX = r"""
for ((i=0; i<4; i++)); do echo $i; done
---
select x in a b; do break; done
---
if [[ $x =~ ^[a-z]+(foo|bar)$ ]]; then echo a; fi
---
case $x in (a|b) echo 1;; c*) echo 2;& *) echo 3;;& "x y") echo;; esac
---
case "$x" in
  # it's a comment (with brackets
  --foo=*) y="${x#*=}" ;;
  -h | --help) echo "usage: $0 [-h] (see README)"; exit 0 ;;
esac
---
cat <<-EOF
	text 'with $(echo "quotes ) in it")
	EOF
---
cat <<'A' <<B
it's
A
$x
B
---
diff <(sort a) <(sort b) > >(tee log)
---
shopt -s extglob
rm -f !(keep|this).txt
---
x=$((1<<2)); y=$(( (x+1) * 2 )); (( x++ )); let y=x+1
---
x=${x//\//_} y=${x^^} z=${x:0:3} w=${x/%.txt/.csv} v=${!x} u=${#x} t=${x@Q}
---
x=$'it\'s' y="a 'b' \"c\" \$d \`e\`" z='a "b"'
---
declare -A m=([a]=1 ["b c"]="2") ; m[c]=3; for k in "${!m[@]}"; do echo "${m[$k]}"; done
---
function f { echo "}"; }
f() ( cd /tmp && ls )
f
---
set -x; { set +x; } 2>/dev/null
---
echo it\'s fine # isn't it
---
x=$(echo "a" # it's a comment )
)
---
x=$(case a in a) echo b;; esac)
---
x=`echo "a \`date\` b"`
---
if true; then :; elif false; then :; else :; fi
---
while read -r line; do echo "$line"; done < <(cat file | grep -v '^#')
---
until [ -f done ]; do sleep 1; done
---
time { ls; } && ! false || true
---
coproc cat
---
echo a |& tee b; echo a &> b; echo c &>> d; echo e 2>&1 >&2; exec 3>&1; echo x >&3; exec 3>&-
---
x="$(
  cat <<EOF
it's "in" here)
EOF
)"
---
if [ "$a" = b -a -f "$c" ] || [[ -n $d && ( $e == f* || $g < h ) ]]; then echo x; fi
---
printf '%s\n' "${a[@]/#/--}" ${b:+"$b"} "${c:-"d e"}" ${f:=g}
---
{ echo a; echo b; } > out
---
[ -d x ] || { echo "no x"; mkdir x; }
---
awk '{print $1}' f | sed -e 's/"//g' -e "s/'//g" | xargs -I{} echo '{}' ; echo a{1..3}b {x,y}
---
alias ll='ls -l'
export A=1 B="2 3" C
readonly D=4; local_var=; unset E
---
: "${X:=1}" ; : ${Y?unset}
---
if ((x > 3 && y < 2)); then echo; fi
---
echo "a
b
c"
---
# comment with ' and " and ( and `
---
foo=bar; [[ $foo == b* ]] && echo yes || echo no
---
source env.sh; . ./other.sh
---
srun bash -c "echo \"a\"; echo '\$b'"
---
x=$(( $(nproc) / 2 )) ; y=$(( ${#arr[@]} * 2 )); z=$(($x**2)); w=$(( x ? 1 : 2 )); v=$[1+2]
---
trap 'echo "bye"; rm -rf "$TMP"' EXIT INT TERM
---
export PATH="$HOME/bin:$PATH" && cd "$(dirname "$(readlink -f "$0")")" || exit
---
echo \
  a \
  b \

---
if [ 1 -eq 1 ] ; then echo ; fi ; for f in *.txt ; do : ; done ; while false ; do : ; done
---
for x
do echo $x; done
---
echo ${x##*/} ${x%%.*} "${x#"${x%%[![:space:]]*}"}"
---
IFS=$'\n' read -r -d '' -a arr < <(ls && printf '\0')
---
while getopts ":a:b" o; do case $o in a) A=$OPTARG;; \?) exit 1;; :) exit 2;; esac; done
---
test -e /x && source /x
---
export X="$(cat <<'EOF'
{"a": "b's"}
EOF
)"
---
if grep -q foo <<< "$bar"; then echo; fi
---
echo "$(( $(date +%s) % 10 ))" "$((16#ff))" "$(<file)"
---
sbatch <<EOF
#!/bin/bash
#SBATCH --nodes=4
srun x
EOF
---
[[ "$(hostname)" == *login* ]] && { echo "no"; exit 1; }
"""


@pytest.mark.parametrize("before", SYNTAX.strip("\n").split("\n---\n"))
def test_a_command_is_found_behind_any_syntax(before):
    assert commands(f"{before}\nrun a b")[-1] == ["run", "a", "b"]
