#include "tests/support/text_cases.h"

#include <algorithm>
#include <filesystem>
#include <fstream>

namespace lockstep::support {

namespace {

void read_file(const std::filesystem::path& path, const std::vector<std::string>& headings, std::vector<TextCase>& cases) {
  const std::string file = path.stem().string();
  TextCase one{file, "", {""}};
  const auto finish = [&] {
    if (!one.parts[0].empty() || one.parts.size() > 1) cases.push_back(one);
    one.parts = {""};
  };
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("#") || line.empty()) continue;
    const size_t heading = one.parts.size() - 1;
    if (line.starts_with("pass ")) {
      finish();
      one.pass = line.substr(5);
    } else if (line.starts_with("case ")) {
      finish();
      one.name = file + '_' + line.substr(5);
    } else if (heading < headings.size() && line == headings[heading]) {
      one.parts.emplace_back();
    } else {
      one.parts.back() += line + '\n';
    }
  }
  finish();
}

}  // namespace

std::vector<TextCase> read_text_cases(const char* near, const char* folder, const std::vector<std::string>& headings) {
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(std::filesystem::path(near).parent_path() / folder))
    if (entry.path().extension() == ".txt") paths.push_back(entry.path());
  std::sort(paths.begin(), paths.end());
  std::vector<TextCase> cases;
  for (const auto& path : paths) read_file(path, headings, cases);
  for (auto& one : cases) one.parts.resize(headings.size() + 1);  // what is missing is empty
  return cases;
}

}  // namespace lockstep::support
