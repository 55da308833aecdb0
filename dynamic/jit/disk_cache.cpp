#include "dynamic/jit/disk_cache.h"

#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <sstream>

namespace lockstep::dynamic::jit {
namespace {

constexpr char kMagic[8] = {'l', 's', 'k', 'e', 'r', 'n', '0', '1'};

struct Header {
  char magic[8];
  uint64_t key_bytes;
  uint64_t object_bytes;
  uint64_t checksum;  // of key and object
};

}  // namespace

// FNV-1a, then mixed: names of files and torn writes, nothing that an enemy chooses.
uint64_t hash_bytes(const std::string& bytes, uint64_t seed) {
  uint64_t hash = 0xcbf29ce484222325u ^ seed;
  for (unsigned char byte : bytes) hash = (hash ^ byte) * 0x100000001b3u;
  hash ^= hash >> 32;
  return hash * 0x9e3779b97f4a7c15u;
}

std::ifstream open_cached(const std::string& path) {
  std::error_code error;
  std::ifstream file;
  if (std::filesystem::is_regular_file(path, error)) {
    file.open(path, std::ios::binary);
  } else {
    file.setstate(std::ios::failbit);
  }
  return file;
}

std::string DiskCache::default_folder() {
  const char* given = std::getenv("LOCKSTEP_CACHE");
  const char* home = std::getenv("HOME");
  const bool has_home = home && *home;
  if (!given) return has_home ? std::string(home) + "/.cache/lockstep" : "";
  const std::string folder = given;
  const bool begins_at_home = folder == "~" || folder.compare(0, 2, "~/") == 0;  // no shell replaced it
  return has_home && begins_at_home ? home + folder.substr(1) : folder;
}

std::string DiskCache::path_of(const std::string& key) const {
  char name[48];
  std::snprintf(name, sizeof name, "%016llx%016llx.kernel", static_cast<unsigned long long>(hash_bytes(key, 1)),
                static_cast<unsigned long long>(hash_bytes(key, 2)));
  return folder_ + "/" + name;
}

std::optional<std::string> DiskCache::find(const std::string& key) const {
  if (folder_.empty()) return std::nullopt;
  std::ifstream file = open_cached(path_of(key));
  if (!file) return std::nullopt;
  std::ostringstream content;
  content << file.rdbuf();
  std::string bytes = content.str();
  Header header;
  if (bytes.size() < sizeof header) return std::nullopt;
  std::memcpy(&header, bytes.data(), sizeof header);
  if (std::memcmp(header.magic, kMagic, sizeof kMagic) != 0 || header.key_bytes != key.size()) return std::nullopt;
  if (bytes.size() != sizeof header + header.key_bytes + header.object_bytes) return std::nullopt;
  std::string body = bytes.substr(sizeof header);
  if (hash_bytes(body, 3) != header.checksum || body.compare(0, key.size(), key) != 0) return std::nullopt;
  return body.substr(key.size());
}

void DiskCache::insert(const std::string& key, const std::string& object) const {
  if (folder_.empty()) return;
  std::error_code error;
  std::filesystem::create_directories(folder_, error);
  if (error) return;
  static std::atomic<uint64_t> counter{0};
  std::string path = path_of(key);
  std::string unfinished = path + "." + std::to_string(getpid()) + "." + std::to_string(counter++) + ".tmp";
  Header header{};
  std::memcpy(header.magic, kMagic, sizeof kMagic);
  header.key_bytes = key.size();
  header.object_bytes = object.size();
  header.checksum = hash_bytes(key + object, 3);
  {
    std::ofstream file(unfinished, std::ios::binary);
    file.write(reinterpret_cast<const char*>(&header), sizeof header);
    file << key << object;
    if (!file.flush()) error = std::make_error_code(std::errc::io_error);
  }
  if (!error) std::filesystem::rename(unfinished, path, error);
  if (error) std::filesystem::remove(unfinished, error);
}

}  // namespace lockstep::dynamic::jit
