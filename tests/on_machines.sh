#!/usr/bin/env bash
# Run the tests with the rounding of other processors, and the training tests with ten seeds.
#
#     tests/on_machines.sh                               every setting
#     tests/on_machines.sh ONEDNN_MAX_CPU_ISA=AVX2       one setting
#
# LOADED is the default setting while as many other processes as processors are busy.
# Prints two rows per setting: passed and failed tests, and the worst scores of the training tests.
set -uo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}
training="tests/test_tiny.py -k learns_to_copy"
settings=${*:-DEFAULT LOADED ONEDNN_MAX_CPU_ISA=AVX512_CORE ONEDNN_MAX_CPU_ISA=AVX2
    ONEDNN_MAX_CPU_ISA=SSE41 TF_ENABLE_ONEDNN_OPTS=0}
report=$(mktemp)

# Print the counts of a run, and the lowest of each score that its tests recorded.
summary() {
    "$python" - "$report" <<'END'
import sys, xml.etree.ElementTree as tree
suite = tree.parse(sys.argv[1]).getroot().find("testsuite")
failed = int(suite.get("failures")) + int(suite.get("errors"))
skipped, total = int(suite.get("skipped")), int(suite.get("tests"))
lowest = {}
for p in suite.iter("property"):
    lowest[p.get("name")] = min(float(p.get("value")), lowest.get(p.get("name"), 1e9))
scores = ", ".join(f"{name} {score:g}" for name, score in sorted(lowest.items()))
print(f"{total - failed - skipped} passed, {failed} failed, {skipped} skipped; lowest: {scores}")
END
}

run() {
    local setting=$1 name=$2
    shift 2
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
    echo "$setting, $name: $(summary)"
}

for setting in $settings; do
    run "$setting" "all tests" -n 3 --dist loadscope --no-loadscope-reorder
    SLOW=1 TEST_SEEDS="1 2 3 4 5 6 7 8 9 10" run "$setting" "ten seeds" -n 2 $training
done
rm -f "$report"
