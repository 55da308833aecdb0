// Storages whose values the runner keeps in another form than the layouts say that everybody knows. The form is hidden in
// the context of the data pointer, so that it ends with the storage or with its memory, and who takes the pointer without
// asking gets null, never other numbers. Nobody outside of the runner meets such a storage: publishing one restores it.
#pragma once

#include <c10/core/StorageImpl.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <shared_mutex>

namespace lockstep::dynamic {

struct HiddenForm {
  virtual ~HiddenForm() = default;
  // The values as the layouts say. It may give its own memory: it ends after this. Calls no op: the hook must not see it.
  virtual c10::DataPtr restored(const c10::StorageImpl& storage, bool in_parallel) = 0;
};

bool some_are_hidden();  // of the whole process
bool is_hidden(const c10::StorageImpl& storage);
// The storage has no memory, or that of another form, which ends.
void hide(c10::StorageImpl& storage, std::unique_ptr<HiddenForm> form);
// Null where it is not hidden, or in another form.
HiddenForm* hidden_form(const c10::StorageImpl& storage);
template <typename Form>
Form* hidden_as(const c10::StorageImpl& storage) {
  return dynamic_cast<Form*>(hidden_form(storage));
}
// To what everybody knows, if it is hidden.
void restore(c10::StorageImpl& storage);

// While events run, only their own thread may restore what they use; others wait. Costs nothing while nothing is hidden.
class HiddenStorageReader {
 public:
  HiddenStorageReader();
  bool some_are_hidden() const { return lock_.owns_lock(); }  // perhaps what this event uses

 private:
  std::shared_lock<std::shared_mutex> lock_;
};
// In a forked child, where those who had it do not exist.
void renew_hidden_storage_lock();
// From any thread, between events.
void restore_from_outside(c10::StorageImpl& storage);

}  // namespace lockstep::dynamic
