#include "graph/reasons.h"

namespace lockstep::graph {

namespace {
const char* const kNames[] = {
#define X(name, sentence) #name,
    LOCKSTEP_REASONS(X)
#undef X
};
const char* const kSentences[] = {
#define X(name, sentence) sentence,
    LOCKSTEP_REASONS(X)
#undef X
};
}  // namespace

const char* reason_name(Reason reason) { return kNames[static_cast<int>(reason)]; }
const char* reason_sentence(Reason reason) { return kSentences[static_cast<int>(reason)]; }

}  // namespace lockstep::graph
