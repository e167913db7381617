// The check of the numbers that groups are given by, where OCTOFOLD_CHECK_GROUPS asks for it.
#pragma once

namespace octofold::config {

// An entry that is not what it has to be, in host memory, as a kernel leaves it there.
struct GroupFault {
  enum State : unsigned { kNone, kBeingWritten, kWhole };

  unsigned state;
  int argument;  // whose it is: src/cuda/group_check.h has the names
  bool ascends;
  long long index;
  int value;
  int before;  // the entry before it, where they have to ascend
  int low;     // what it might have been
  int high;
  int unit = 1;
};

struct GroupCheckConfig {
  bool ascends = false;  // offsets: from 0 on, never less than before

  static constexpr const char* kHeader = "kernels/routing/group_check.h";
  static constexpr const char* kKernel = "group_check_kernel";
  static constexpr const char* kTypeName = "octofold::config::GroupCheckConfig";
  template <typename Visit>
  constexpr void visit(Visit&& field) const {
    field("ascends", ascends);
  }
  friend constexpr bool operator==(const GroupCheckConfig&, const GroupCheckConfig&) = default;

  constexpr int threads() const { return 512; }  // one block
};

struct GroupCheckParams {
  const int* numbers;  // [count / cols, cols]
  long long stride;    // elements
  int cols;
  int count;  // of all
  int low;    // entries are low … high, multiples of the unit
  int high;
  int unit = 1;
  int argument;
  GroupFault* fault;
};

}  // namespace octofold::config
