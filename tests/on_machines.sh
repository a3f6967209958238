#!/usr/bin/env bash
# Run the tests with the rounding of other processors, and the training tests with several seeds.
#
#     tests/on_machines.sh            every setting, all tests, then ten seeds of the training tests
#     SEEDS=3 tests/on_machines.sh seeds
#
# LOADED is the default setting while as many other processes as processors are busy.
# Prints one line per run: the setting, passed and failed tests, and the training tests' scores.
set -uo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}
training="tests/test_scripts.py::test_it_learns_to_copy
tests/test_subwords.py::test_it_learns_to_copy_text_with_digits_and_punctuation"
settings="DEFAULT LOADED ONEDNN_MAX_CPU_ISA=AVX512_CORE ONEDNN_MAX_CPU_ISA=AVX2 ONEDNN_MAX_CPU_ISA=SSE41
TF_ENABLE_ONEDNN_OPTS=0"
report=$(mktemp)

# Print the counts of a run, and the properties that its tests recorded.
summary() {
    "$python" - "$report" <<'END'
import sys, xml.etree.ElementTree as tree
suite = tree.parse(sys.argv[1]).getroot().find("testsuite")
bad = int(suite.get("failures")) + int(suite.get("errors"))
skipped, total = int(suite.get("skipped")), int(suite.get("tests"))
reached = [f"{p.get('name')} {p.get('value')}" for p in suite.iter("property")]
print(f"{total - bad - skipped} passed, {bad} failed, {skipped} skipped;", ", ".join(reached))
END
}

run() {
    local setting=$1
    shift
    local variables=() busy=()
    case $setting in
        DEFAULT) ;;
        LOADED) for _ in $(seq "$(getconf _NPROCESSORS_ONLN)"); do
            while :; do :; done &
            busy+=($!)
        done ;;
        *) variables=("$setting") ;;
    esac
    env "${variables[@]}" "$python" -m pytest -q -p no:cacheprovider --junitxml="$report" "$@" > /dev/null 2>&1
    [ ${#busy[@]} = 0 ] || kill "${busy[@]}"
    echo "$setting ${TEST_SEED:+seed $TEST_SEED}: $(summary)"
}

for setting in $settings; do
    if [ "${1:-all}" = all ]; then
        run "$setting" -n 3 --dist loadscope --no-loadscope-reorder
    fi
    for seed in $(seq 1 "${SEEDS:-10}"); do
        TEST_SEED=$seed run "$setting" $training
    done
done
rm -f "$report"
