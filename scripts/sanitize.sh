#!/usr/bin/env bash
# Builds the C++ components and their tests under ThreadSanitizer and AddressSanitizer and runs them.
#
#   bash scripts/sanitize.sh             both
#   bash scripts/sanitize.sh tsan        one of tsan, asan
#
# Only our code is instrumented. PyTorch, OpenMP and the interpreter are not: the tests run without the last two, kernels
# run with one thread, and what PyTorch synchronises out of the sanitizers' sight stands in tests/support/*.supp.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
[ -d "${LOCKSTEP_VENV:-.venv}/bin" ] && PATH="$(cd "${LOCKSTEP_VENV:-.venv}/bin" && pwd):$PATH"

# Those where threads meet.
TSAN_TESTS=(coexec_channel coexec_placeholder coexec_session coexec_failure coexec_doors
            coexec_random_program dynamic_allocator dynamic_shape_memo
            dynamic_shared_loop)
# All but what looks for an address that is given out again, which AddressSanitizer puts off, and for strides that
# PyTorch's convolutions give to dims of one element with more threads than one.
ASAN_TESTS=()
for test in tests/{graph,tracer,dynamic,coexec}/*_test.cpp; do
    name="$(basename "$(dirname "$test")")_$(basename "$test" _test.cpp)"
    case "$name" in graph_op_info | dynamic_convolution) ;; *) ASAN_TESTS+=("$name") ;; esac
done
SUPPORT="$PWD/tests/support"
export OMP_NUM_THREADS=1 MKL_NUM_THREADS=1
# Slower under a sanitizer, so fewer programs.
export LOCKSTEP_TEST_PROGRAMS="${LOCKSTEP_TEST_PROGRAMS:-30}"

# Memory that is refused is a null pointer, as it is without a sanitizer.
export TSAN_OPTIONS="allocator_may_return_null=1 suppressions=$SUPPORT/tsan.supp ignore_noninstrumented_modules=1 halt_on_error=0 exitcode=66"
# PyTorch's static objects are never freed: leaks are looked for in our code only.
export ASAN_OPTIONS="allocator_may_return_null=1 detect_leaks=1 detect_odr_violation=0 alloc_dealloc_mismatch=0"
export LSAN_OPTIONS="suppressions=$SUPPORT/lsan.supp print_suppressions=0"
export UBSAN_OPTIONS="print_stacktrace=1 halt_on_error=1"

failed=()
check() {
    local preset="$1"
    shift
    cmake --preset "$preset" >/dev/null
    cmake --build --preset "$preset" --target "${@/#/lockstep_test_}"
    for name in "$@"; do
        printf '== %s %s\n' "$preset" "$name"
        # fixed addresses: ThreadSanitizer's shadow does not fit every random layout
        timeout 240 setarch -R "build-$preset/lockstep_test_$name" --gtest_brief=1 ||
            failed+=("$preset:$name")
    done
}

case "${1:-all}" in
    tsan) check tsan "${TSAN_TESTS[@]}" ;;
    asan) check asan "${ASAN_TESTS[@]}" ;;
    all) check tsan "${TSAN_TESTS[@]}"; check asan "${ASAN_TESTS[@]}" ;;
    *) echo "sanitize: unknown preset $1; use tsan or asan" >&2; exit 2 ;;
esac
if [ "${#failed[@]}" -gt 0 ]; then
    echo "sanitizers found something in: ${failed[*]}"
    exit 1
fi
echo "sanitizers found nothing"
