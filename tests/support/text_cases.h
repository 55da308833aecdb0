// Cases in text: what goes in, and what comes out, a file or several cases a file.
//
//   # what the case shows
//   pass merge_repeats
//   case of_loads
//   ...
//   becomes
//   ...
//   case of_sums        the same pass, until another one is named
//
// A file without the word `case` is one case, named as the file.
#pragma once

#include <ostream>
#include <string>
#include <vector>

namespace lockstep::support {

struct TextCase {
  std::string name, pass;
  std::vector<std::string> parts;  // what stands before the first heading, then what stands under each
};
inline void PrintTo(const TextCase& text, std::ostream* out) { *out << text.name; }

// All cases of the text files of a folder, which lies beside the source file `near`. Each part ends with the line that
// comes next in `headings`.
std::vector<TextCase> read_text_cases(const char* near, const char* folder, const std::vector<std::string>& headings);

}  // namespace lockstep::support
