// Objects on disk by content: a file is named by the hash of everything that its code depends on, holds that text and
// a checksum, and is written under another name first. Any number of processes may use one folder.
#pragma once

#include <cstdint>
#include <fstream>
#include <optional>
#include <string>

namespace lockstep::dynamic::jit {

class DiskCache {
 public:
  // $LOCKSTEP_CACHE, else ~/.cache/lockstep; empty where there is no home.
  static std::string default_folder();

  explicit DiskCache(std::string folder) : folder_(std::move(folder)) {}  // an empty folder: no cache
  // Nothing where there is no file, or one that is torn, foreign or of another key with the same hash.
  std::optional<std::string> find(const std::string& key) const;
  // Failure to write is no failure of the caller's: the next process compiles again.
  void insert(const std::string& key, const std::string& object) const;
  std::string path_of(const std::string& key) const;

 private:
  std::string folder_;
};

// Of a file of the cache, which may have been replaced by anything: none where it is no file, for a pipe would never end.
std::ifstream open_cached(const std::string& path);
uint64_t hash_bytes(const std::string& bytes, uint64_t seed);

}  // namespace lockstep::dynamic::jit
