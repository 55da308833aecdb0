// lockstep_replay FOLDER: runs a recorded call. Status 0 where it comes out bit for bit, 1 where not, 2 for bad input.
#include <cstdio>
#include <cstring>
#include <exception>

#include "dynamic/vm/replay.h"

int main(int argc, char** argv) {
  const bool asks_for_help = argc == 2 && (std::strcmp(argv[1], "--help") == 0 || std::strcmp(argv[1], "-h") == 0);
  if (argc != 2 || asks_for_help) {
    std::fprintf(asks_for_help ? stdout : stderr,
                 "usage: lockstep_replay FOLDER   (a folder that lockstep.record_call wrote)\n"
                 "status: 0 where the call comes out bit for bit, 1 where not, 2 for bad input\n");
    return asks_for_help ? 0 : 2;
  }
  try {
    auto call = lockstep::dynamic::read_recorded_call(argv[1]);
    const auto report = lockstep::dynamic::replay(call);
    if (report.failure) {
      std::printf("differs: %s\n%s\n", report.failure->c_str(), report.str().c_str());
      return 1;
    }
    std::printf("equal: %s\n", report.str().c_str());
    if (report.first_unlike) std::printf("first event that left other bytes: %s\n", report.first_unlike->c_str());
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "lockstep_replay: %s\n", error.what());
    return 2;
  }
}
