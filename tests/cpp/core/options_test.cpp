#include "core/options.h"

#include "support/test.h"

namespace octofold::core {
namespace {

// parse_options takes a plain function, so the variables of a test live in statics.
const char* variable_name = nullptr;
const char* variable_value = nullptr;
const char* fake_getenv(const char* name) {
  return variable_name != nullptr && std::strcmp(name, variable_name) == 0 ? variable_value
                                                                           : nullptr;
}

Options parse(const char* name, const char* value) {
  variable_name = name;
  variable_value = value;
  return parse_options(fake_getenv);
}

TEST(OptionsTest, Defaults) {
  const Options options = parse(nullptr, nullptr);
  EXPECT_GE(options.num_threads, 1);
  EXPECT_EQ(options.log_level, LogLevel::kInfo);
  EXPECT_EQ(options.nvrtc_library, "");
  EXPECT_FALSE(options.check_groups);
  EXPECT_FALSE(options.batch_invariant);
  EXPECT_EQ(options.target, 0);
  EXPECT_TRUE(options.uses_tuning);
  EXPECT_EQ(options.tuning_file, "");
  EXPECT_TRUE(options.uses_precompiled_kernels);
}

TEST(OptionsTest, Values) {
  EXPECT_EQ(parse("OCTOFOLD_NUM_THREADS", "12").num_threads, 12);
  EXPECT_EQ(parse("OCTOFOLD_LOG_LEVEL", "debug").log_level, LogLevel::kDebug);
  EXPECT_EQ(parse("OCTOFOLD_NVRTC", "/x/libnvrtc.so").nvrtc_library, "/x/libnvrtc.so");
  EXPECT_EQ(parse("OCTOFOLD_TUNING", "/x/table.json").tuning_file, "/x/table.json");
  EXPECT_TRUE(parse("OCTOFOLD_TUNING", "/x/table.json").uses_tuning);
  EXPECT_FALSE(parse("OCTOFOLD_TUNING", "0").uses_tuning);
  EXPECT_TRUE(parse("OCTOFOLD_CHECK_GROUPS", "1").check_groups);
  EXPECT_FALSE(parse("OCTOFOLD_CHECK_GROUPS", "0").check_groups);
  EXPECT_TRUE(parse("OCTOFOLD_BATCH_INVARIANT", "1").batch_invariant);
  EXPECT_FALSE(parse("OCTOFOLD_PRECOMPILED_KERNELS", "0").uses_precompiled_kernels);
  EXPECT_TRUE(parse("OCTOFOLD_PRECOMPILED_KERNELS", "1").uses_precompiled_kernels);
  EXPECT_EQ(parse("OCTOFOLD_TARGET", "sm_75").target, 75);
  EXPECT_EQ(parse("OCTOFOLD_TARGET", "sm_120").target, 120);
}

TEST(OptionsTest, AnEmptyVariableIsAsGoodAsNone) {
  EXPECT_EQ(parse("OCTOFOLD_NUM_THREADS", "").num_threads, parse(nullptr, nullptr).num_threads);
  EXPECT_EQ(parse("OCTOFOLD_LOG_LEVEL", "").log_level, LogLevel::kInfo);
  EXPECT_EQ(parse("OCTOFOLD_NVRTC", "").nvrtc_library, "");
}

TEST(OptionsTest, CacheFolder) {
  EXPECT_EQ(parse("OCTOFOLD_CACHE_DIR", "/x/kernels").cache_folder, "/x/kernels");
  EXPECT_EQ(parse("XDG_CACHE_HOME", "/x").cache_folder, "/x/octofold");
  EXPECT_EQ(parse("XDG_CACHE_HOME", "relative").cache_folder, "");
  EXPECT_EQ(parse("HOME", "/home/me").cache_folder, "/home/me/.cache/octofold");
  EXPECT_EQ(parse(nullptr, nullptr).cache_folder, "");
}

TEST(OptionsTest, BadValuesNameTheVariable) {
  for (const char* value : {"0", "-3", "1025", "two", "4x", "99999999999999999999"}) {
    try {
      parse("OCTOFOLD_NUM_THREADS", value);
      ADD_FAILURE() << "'" << value << "' was taken";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      EXPECT_NE(std::string(error.what()).find("OCTOFOLD_NUM_THREADS"), std::string::npos);
    }
  }
  EXPECT_THROW(parse("OCTOFOLD_LOG_LEVEL", "loud"), Error);
  EXPECT_THROW(parse("OCTOFOLD_CHECK_GROUPS", "yes"), Error);
  EXPECT_THROW(parse("OCTOFOLD_PRECOMPILED_KERNELS", "2"), Error);
}

}  // namespace
}  // namespace octofold::core
