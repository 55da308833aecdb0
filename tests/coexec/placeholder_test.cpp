#include "coexec/placeholder.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/ones.h>
#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>

#include <cstring>
#include <thread>
#include <vector>

#include "dynamic/vm/executor.h"
#include "tests/support/test_host.h"

namespace lockstep::coexec {
namespace {

c10::StorageImpl* storage_of(const at::Tensor& tensor) { return tensor.storage().unsafeGetStorageImpl(); }

void fill(const StorageRef& twin, float value) {
  twin->set_data_ptr_noswap(c10::GetCPUAllocator()->allocate(twin->nbytes()));
  auto* data = static_cast<float*>(twin->mutable_data());
  for (size_t i = 0; i < twin->nbytes() / sizeof(float); ++i) data[i] = value;
}

TEST(Placeholder, LinkingLeavesDataAndUseCountsAlone) {
  auto tensor = at::arange(6, at::kFloat);
  auto* user = storage_of(tensor);
  const void* data = tensor.const_data_ptr();
  const auto tensors = tensor.use_count();
  const auto storages = tensor.storage().use_count();
  EXPECT_EQ(link_of(user), nullptr);
  Link* link = link_storage(user);
  EXPECT_EQ(link_of(user), link);
  EXPECT_EQ(tensor.const_data_ptr(), data);
  EXPECT_EQ(link->twin->data(), data);
  EXPECT_EQ(link->twin->nbytes(), user->nbytes());
  EXPECT_TRUE(link->is_published);
  EXPECT_EQ(tensor.use_count(), tensors);
  EXPECT_EQ(tensor.storage().use_count(), storages);
  EXPECT_EQ(tensor[5].item<float>(), 5);
}

TEST(Placeholder, TheTwinOutlivesTheUsersStorage) {
  StorageRef twin;
  {
    auto tensor = at::ones({4});
    twin = link_storage(storage_of(tensor))->twin;
    EXPECT_EQ(twin.use_count(), 2u);
  }
  EXPECT_EQ(twin.use_count(), 1u);  // the link has gone with the user's half
  EXPECT_EQ(static_cast<const float*>(twin->data())[3], 1);
}

TEST(Placeholder, PublishingGivesEveryViewTheData) {
  graph::Layout layout;
  layout.dtype = at::kFloat;
  layout.sizes = {2, 3};
  layout.strides = {3, 1};
  layout.storage_bytes = 24;
  auto twin = dynamic::create_empty_storage(24);
  Link* link = nullptr;
  auto user = create_pending_storage(24, twin, &link);
  auto tensor = create_placeholder(user, layout);
  auto view = tensor.t();
  EXPECT_EQ(tensor.sizes(), at::IntArrayRef({2, 3}));
  EXPECT_FALSE(link->is_published);
  EXPECT_EQ(user->data(), nullptr);
  fill(twin, 2.5f);
  publish(link);
  EXPECT_TRUE(link->is_published);
  EXPECT_EQ(tensor.const_data_ptr(), twin->data());
  EXPECT_EQ(view[2][1].item<float>(), 2.5f);
  publish(link);  // twice is once
  EXPECT_EQ(tensor.const_data_ptr(), twin->data());
}

TEST(Placeholder, ForeignMemoryIsNotPlain) {
  std::vector<float> buffer(8, 1);
  auto foreign = at::from_blob(buffer.data(), {8});
  EXPECT_FALSE(owns_plain_memory(storage_of(foreign)));
  bool freed = false;
  auto with_deleter = at::from_blob(buffer.data(), {8}, [&](void*) { freed = true; });
  EXPECT_FALSE(owns_plain_memory(storage_of(with_deleter)));
  EXPECT_TRUE(owns_plain_memory(storage_of(at::empty({3}))));
  EXPECT_TRUE(owns_plain_memory(storage_of(at::empty({0}))));
}

TEST(Placeholder, ALinkedStorageIsNoLongerPlain) {
  auto tensor = at::ones({4});
  link_storage(storage_of(tensor));
  EXPECT_FALSE(owns_plain_memory(storage_of(tensor)));
}

// Whoever takes a mutable pointer to a pending storage gets the data, also where no session is active.
TEST(Placeholder, AnArmedStorageIsPublishedByRawAccess) {
  support::session();
  graph::Layout layout;
  layout.dtype = at::kFloat;
  layout.sizes = {4};
  layout.strides = {1};
  layout.storage_bytes = 16;
  auto twin = dynamic::create_empty_storage(16);
  Link* link = nullptr;
  auto tensor = create_placeholder(create_pending_storage(16, twin, &link), layout);
  EXPECT_TRUE(storage_of(tensor)->has_materializer());
  fill(twin, 3);
  EXPECT_EQ(static_cast<float*>(tensor.storage().mutable_data())[0], 3);
  EXPECT_TRUE(link->is_published);
}

TEST(Placeholder, TwoThreadsMakeOneLink) {
  for (int round = 0; round < 300; ++round) {
    auto tensor = at::ones({4});
    Link* links[2] = {};
    std::thread other([&] { links[1] = link_storage(storage_of(tensor)); });
    links[0] = link_storage(storage_of(tensor));
    other.join();
    ASSERT_EQ(links[0], links[1]);
    ASSERT_EQ(tensor[2].item<float>(), 1);
  }
}

TEST(Placeholder, PublishingWithoutDataGivesMemory) {
  auto twin = dynamic::create_empty_storage(16);
  Link* link = nullptr;
  auto user = create_pending_storage(16, twin, &link);
  publish(link);  // its event was never executed
  ASSERT_NE(user->data(), nullptr);
  EXPECT_EQ(static_cast<const float*>(user->data())[3], 0);
}

// Tensors die on whichever thread drops them last, also while the leading one publishes.
TEST(Placeholder, StoragesDieOnAnotherThreadWhileTheyArePublished) {
  for (int round = 0; round < 200; ++round) {
    std::vector<c10::intrusive_ptr<c10::StorageImpl>> users;
    std::vector<StorageRef> twins;
    std::vector<Link*> links;
    for (int i = 0; i < 16; ++i) {
      twins.push_back(dynamic::create_empty_storage(64));
      fill(twins.back(), static_cast<float>(i));
      Link* link = nullptr;
      users.push_back(create_pending_storage(64, twins.back(), &link));
      links.push_back(link);
    }
    std::thread other([&, half = std::vector(users.begin() + 8, users.end())]() mutable { half.clear(); });
    for (int i = 0; i < 8; ++i) publish(links[i]);
    other.join();
    for (int i = 0; i < 8; ++i) EXPECT_EQ(users[i]->data(), twins[i]->data());
  }
}

}  // namespace
}  // namespace lockstep::coexec
