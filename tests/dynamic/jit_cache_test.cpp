// The caches: memory, disk, files that are torn or foreign, other processes, threads; and errors that have a reason.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <thread>

#include "dynamic/jit/disk_cache.h"
#include "tests/support/jit_kernels.h"

namespace lockstep::dynamic::jit {
namespace {

class JitCache : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "lockstep_jit_XXXXXX").string();
    folder_ = mkdtemp(pattern.data());
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string folder_;
};

// x * factor + sum(x): another kernel for each factor.
KernelSpec make_spec(double factor) {
  KernelSpec spec;
  spec.sizes = {kSymbolic, kSymbolic};
  int x = spec.add_buffer(DType::kFloat32, Access::kIn, {kSymbolic, 1});
  int y = spec.add_buffer(DType::kFloat32, Access::kOut, {kSymbolic, 1});
  ValueId value = spec.load(x);
  ValueId scaled = spec.binary(Op::k_mul, value, spec.constant(DType::kFloat32, factor));
  spec.store(y, spec.binary(Op::k_add, scaled, spec.reduce(ReduceKind::kSum, value, {1})));
  return spec;
}

bool gives_right_numbers(const CompileResult& result, double factor) {
  if (!result) return false;
  at::Tensor x = at::randn({9, 77});
  at::Tensor y = at::empty_like(x);
  run_on(*result.kernel, {x, y}, {9, 77}, {77, 77});
  return at::allclose(y, x * factor + x.sum(1, true), 1e-4, 1e-4);
}

TEST_F(JitCache, FindsInMemoryThenOnDisk) {
  KernelCache first(folder_);
  EXPECT_TRUE(gives_right_numbers(first.get(make_spec(2)), 2));
  EXPECT_EQ(first.get(make_spec(2)).kernel, first.get(make_spec(2)).kernel);
  EXPECT_EQ(first.statistics().compiled_count, 1);
  EXPECT_EQ(first.statistics().found_count, 2);
  KernelCache second(folder_);
  EXPECT_TRUE(gives_right_numbers(second.get(make_spec(2)), 2));
  EXPECT_EQ(second.statistics().compiled_count, 0);
  EXPECT_EQ(second.statistics().loaded_count, 1);
}

TEST_F(JitCache, AnotherTargetIsAnotherFile) {
  KernelCache host(folder_);
  KernelCache narrow(folder_, TargetChoice::kAvx2);
  EXPECT_NE(host.path_of(make_spec(2)), narrow.path_of(make_spec(2)));
  EXPECT_TRUE(gives_right_numbers(host.get(make_spec(2)), 2));
  EXPECT_TRUE(gives_right_numbers(narrow.get(make_spec(2)), 2));
  EXPECT_EQ(narrow.statistics().loaded_count, 0);
}

TEST_F(JitCache, TornAndForeignFilesAreWrittenAnew) {
  KernelSpec spec = make_spec(3);
  std::string path = KernelCache(folder_).path_of(spec);
  KernelCache(folder_).get(spec);
  auto size = std::filesystem::file_size(path);
  auto spoil = [&](int way) {
    if (way == 0) std::filesystem::resize_file(path, size / 2);
    if (way == 1) std::filesystem::resize_file(path, 0);
    if (way == 2) std::ofstream(path, std::ios::binary) << std::string(size, 'x');
    if (way == 3) {
      std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
      file.seekp(static_cast<std::streamoff>(size) - 100);
      file << "spoilt";
    }
    if (way == 4)
      std::filesystem::copy_file(KernelCache(folder_).path_of(make_spec(4)), path,
                                 std::filesystem::copy_options::overwrite_existing);
  };
  KernelCache(folder_).get(make_spec(4));
  for (int way = 0; way < 5; ++way) {
    spoil(way);
    KernelCache cache(folder_);
    EXPECT_TRUE(gives_right_numbers(cache.get(spec), 3)) << way;
    EXPECT_EQ(cache.statistics().compiled_count, 1) << way;
    KernelCache again(folder_);
    again.get(spec);
    EXPECT_EQ(again.statistics().loaded_count, 1) << way;
  }
}

// An intact file whose content is no object, as a broken disk or another version might leave.
TEST_F(JitCache, WhatDoesNotLinkIsCompiled) {
  DiskCache disk(folder_);
  disk.insert("key", "no object");
  EXPECT_EQ(disk.find("key"), "no object");
  EXPECT_EQ(disk.find("other"), std::nullopt);
  std::string reason;
  EXPECT_EQ(LinkedObject::link("no object", &reason), nullptr);
  EXPECT_FALSE(reason.empty());
}

TEST_F(JitCache, WaitsForNoPipe) {
  DiskCache disk(folder_);
  disk.insert("key", "an object");
  const auto path = disk.path_of("key");
  ASSERT_TRUE(std::filesystem::remove(path));
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  EXPECT_EQ(disk.find("key"), std::nullopt);
}

TEST_F(JitCache, WorksWithoutAFolder) {
  for (const std::string& folder : {std::string(), std::string("/proc/nowhere")}) {
    KernelCache cache(folder);
    EXPECT_TRUE(gives_right_numbers(cache.get(make_spec(5)), 5));
    EXPECT_EQ(cache.statistics().compiled_count, 1);
  }
}

TEST_F(JitCache, AnotherProcessFindsTheObject) {
  KernelSpec spec = make_spec(6);
  pid_t child = fork();
  if (child == 0) {
    KernelCache cache(folder_);
    _exit(cache.get(spec) ? 0 : 1);
  }
  int status = 1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  KernelCache cache(folder_);
  EXPECT_TRUE(gives_right_numbers(cache.get(spec), 6));
  EXPECT_EQ(cache.statistics().loaded_count, 1);
}

TEST_F(JitCache, ThreadsCompileAndRunAtOnce) {
  KernelCache cache(folder_);
  std::atomic<int> wrong_count{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 12; ++i) {
        double factor = (t + i) % 6;
        wrong_count += !gives_right_numbers(cache.get(make_spec(factor)), factor);
        wrong_count += !gives_right_numbers(compile(make_spec(factor + 0.5)), factor + 0.5);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong_count, 0);
}

TEST_F(JitCache, SaysWhyThereIsNoKernel) {
  KernelSpec spec = make_spec(1);
  spec.body.pop_back();
  KernelCache cache(folder_);
  CompileResult result = cache.get(spec);
  EXPECT_FALSE(result);
  EXPECT_EQ(result.reason, "spec: b1: stored 0 times");
  EXPECT_EQ(cache.get(spec).reason, result.reason);
  EXPECT_EQ(cache.statistics().failed_count, 1);
}

}  // namespace
}  // namespace lockstep::dynamic::jit
