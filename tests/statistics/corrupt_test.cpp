#include <gtest/gtest.h>

#include <limits>

#include "oscar/core/atomic_file.h"
#include "oscar/core/error.h"
#include "statistics/example.h"
#include "statistics/hdf5.h"
#include "support.h"

namespace oscar {
namespace {

using hdf5::Handle;

Handle open_writable(const std::filesystem::path& path) {
  return {H5Fopen(path.c_str(), H5F_ACC_RDWR, H5P_DEFAULT), H5Fclose, "opening"};
}
Handle group(hid_t file, const char* name) {
  return {H5Gopen2(file, name, H5P_DEFAULT), H5Gclose, "opening"};
}

void replace_attribute(hid_t object, const char* name, std::int64_t value) {
  H5Adelete(object, name);
  hdf5::write_attribute(object, name, value);
}

/// Overwrites one number of a dataset.
void poke(hid_t file, const char* dataset, std::size_t index, double value) {
  const Handle set(H5Dopen2(file, dataset, H5P_DEFAULT), H5Dclose, "opening");
  std::vector<double> data(H5Dget_storage_size(set) / sizeof(double));
  H5Dread(set, H5T_NATIVE_DOUBLE, H5S_ALL, H5S_ALL, H5P_DEFAULT, data.data());
  data.at(index) = value;
  H5Dwrite(set, H5T_NATIVE_DOUBLE, H5S_ALL, H5S_ALL, H5P_DEFAULT, data.data());
}

/// Puts a new dataset of zeros in the place of layer 3's key_outer.
void replace_key_outer(hid_t file, std::vector<hsize_t> shape, hid_t type,
                       hid_t properties = H5P_DEFAULT) {
  H5Ldelete(file, "/layers/3/key_outer", H5P_DEFAULT);
  const Handle space(H5Screate_simple(static_cast<int>(shape.size()), shape.data(), nullptr),
                     H5Sclose, "space");
  const Handle set(
      H5Dcreate2(file, "/layers/3/key_outer", type, space, H5P_DEFAULT, properties, H5P_DEFAULT),
      H5Dclose, "set");
}

struct Corruption {
  const char* name;
  void (*change)(hid_t file);
  const char* message;
};
void PrintTo(const Corruption& c, std::ostream* out) {
  *out << c.name;
}

class CorruptStatistics : public testing::TestWithParam<Corruption> {};

TEST_P(CorruptStatistics, AreRefused) {
  const test::TemporaryFolder folder;
  save_statistics(folder / "s.h5", test::example(1, 4));
  {
    const hdf5::Session session;
    const Handle file = open_writable(folder / "s.h5");
    GetParam().change(file);
  }
  EXPECT_THROW_WITH(load_statistics(folder / "s.h5"), InputError, GetParam().message);
}

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

INSTANTIATE_TEST_SUITE_P(
    Ways, CorruptStatistics,
    testing::Values(
        Corruption{"NoFormat", [](hid_t f) { H5Adelete(f, "format"); }, "\"format\" is missing"},
        Corruption{"OtherFormat",
                   [](hid_t f) {
                     H5Adelete(f, "format");
                     hdf5::write_attribute(f, "format", std::string("x"));
                   },
                   "its format is \"x\""},
        Corruption{"FormatIsANumber", [](hid_t f) { replace_attribute(f, "format", 1); },
                   "not one string"},
        Corruption{"NewerVersion", [](hid_t f) { replace_attribute(f, "format_version", 2); },
                   "format version 2"},
        Corruption{"NoPrecision", [](hid_t f) { H5Adelete(f, "precision"); },
                   "\"precision\" is missing"},
        Corruption{"NegativeTokens", [](hid_t f) { replace_attribute(f, "tokens", -1); },
                   "\"tokens\" is -1"},
        Corruption{"SurrogateFlag", [](hid_t f) { replace_attribute(f, "surrogate_additive", 2); },
                   "expected 0 to 1"},
        Corruption{"NoLayers", [](hid_t f) { H5Ldelete(f, "layers", H5P_DEFAULT); },
                   "\"layers\" is missing"},
        Corruption{"EmptyLayers",
                   [](hid_t f) {
                     H5Ldelete(f, "/layers/3", H5P_DEFAULT);
                     H5Ldelete(f, "/layers/7", H5P_DEFAULT);
                   },
                   "holds no layers"},
        Corruption{
            "LayerName",
            [](hid_t f) { H5Lmove(f, "/layers/3", f, "/layers/03", H5P_DEFAULT, H5P_DEFAULT); },
            "\"03\" is not the number"},
        Corruption{"LayerIsADataset",
                   [](hid_t f) {
                     H5Lmove(f, "/layers/7/key_sum", f, "/layers/4", H5P_DEFAULT, H5P_DEFAULT);
                   },
                   "\"4\" is not a readable group"},
        Corruption{"NoHeads",
                   [](hid_t f) { replace_attribute(group(f, "/layers/3"), "kv_heads", 0); },
                   "\"kv_heads\" is 0"},
        Corruption{"HugeHeads",
                   [](hid_t f) {
                     replace_attribute(group(f, "/layers/3"), "kv_heads", std::int64_t{1} << 40);
                   },
                   "\"kv_heads\" is 1099511627776"},
        Corruption{"OddGroups",
                   [](hid_t f) { replace_attribute(group(f, "/layers/3"), "q_heads", 5); },
                   "multiple of KV heads"},
        Corruption{"OtherDim",
                   [](hid_t f) { replace_attribute(group(f, "/layers/3"), "head_dim", 5); },
                   "is [2, 4, 4], expected [2, 5, 5]"},
        Corruption{"NoDataset", [](hid_t f) { H5Ldelete(f, "/layers/3/value_outer", H5P_DEFAULT); },
                   "\"value_outer\" is missing"},
        Corruption{"HalfIsAll",
                   [](hid_t f) { replace_attribute(group(f, "/layers/7/half"), "tokens", 20); },
                   "no part of 20 tokens"},
        Corruption{"HalfOfOtherHeads",
                   [](hid_t f) { replace_attribute(group(f, "/layers/7/half"), "q_heads", 2); },
                   "no part of"},
        Corruption{"HalfHasMoreSamples",
                   [](hid_t f) { replace_attribute(group(f, "/layers/7/half"), "samples", 5); },
                   "\"samples\" is 5"},
        Corruption{"HalfIsADataset",
                   [](hid_t f) {
                     H5Ldelete(f, "/layers/7/half", H5P_DEFAULT);
                     H5Lcreate_hard(f, "/layers/7/key_sum", f, "/layers/7/half", H5P_DEFAULT,
                                    H5P_DEFAULT);
                   },
                   "\"half\" is not a readable group"},
        Corruption{"HalfNotANumber",
                   [](hid_t f) { poke(f, "/layers/7/half/value_outer", 0, kNan); },
                   "half: value_outer of head 0 holds a non-finite number"},
        Corruption{"SoftLink",
                   [](hid_t f) {
                     H5Ldelete(f, "/layers/3/key_sum", H5P_DEFAULT);
                     H5Lcreate_soft("/layers/7/key_sum", f, "/layers/3/key_sum", H5P_DEFAULT,
                                    H5P_DEFAULT);
                   },
                   "link to somewhere else"},
        Corruption{"ExternalLink",
                   [](hid_t f) {
                     H5Ldelete(f, "/layers/3", H5P_DEFAULT);
                     H5Lcreate_external("/etc/passwd", "/", f, "/layers/3", H5P_DEFAULT,
                                        H5P_DEFAULT);
                   },
                   "link to somewhere else"},
        Corruption{"Axes",
                   [](hid_t f) {
                     replace_key_outer(f, {2, 16}, H5T_IEEE_F64LE);
                   },
                   "has 2 axes, expected 3"},
        Corruption{"Float32",
                   [](hid_t f) {
                     replace_key_outer(f, {2, 4, 4}, H5T_IEEE_F32LE);
                   },
                   "does not hold float64"},
        Corruption{"Integers",
                   [](hid_t f) {
                     replace_key_outer(f, {2, 4, 4}, H5T_STD_I64LE);
                   },
                   "does not hold float64"},
        Corruption{"NeverWritten",
                   [](hid_t f) {
                     replace_key_outer(f, {2, 4, 4}, H5T_IEEE_F64LE);
                   },
                   "not stored as one piece"},
        Corruption{"Compressed",
                   [](hid_t f) {
                     const Handle p(H5Pcreate(H5P_DATASET_CREATE), H5Pclose, "p");
                     const hsize_t chunk[] = {1, 4, 4};
                     H5Pset_chunk(p, 3, chunk);
                     H5Pset_deflate(p, 9);
                     replace_key_outer(f, {2, 4, 4}, H5T_IEEE_F64LE, p);
                   },
                   "not stored as one piece"},
        Corruption{"ExternalData",
                   [](hid_t f) {
                     const Handle p(H5Pcreate(H5P_DATASET_CREATE), H5Pclose, "p");
                     H5Pset_external(p, "/etc/passwd", 0, 2 * 4 * 4 * sizeof(double));
                     replace_key_outer(f, {2, 4, 4}, H5T_IEEE_F64LE, p);
                   },
                   "not stored as one piece"},
        Corruption{"LargerThanTheFile",
                   [](hid_t f) {
                     for (const char* dim : {"head_dim", "value_dim"})
                       replace_attribute(group(f, "/layers/3"), dim, 1 << 14);
                     H5Ldelete(f, "/layers/3/query_outer", H5P_DEFAULT);
                     H5Lmove(f, "/layers/3/key_outer", f, "/layers/3/query_outer", H5P_DEFAULT,
                             H5P_DEFAULT);
                     const hsize_t shape[] = {2, 1 << 14, 1 << 14};
                     H5Ldelete(f, "/layers/3/query_outer", H5P_DEFAULT);
                     const Handle space(H5Screate_simple(3, shape, nullptr), H5Sclose, "space");
                     const Handle set(H5Dcreate2(f, "/layers/3/query_outer", H5T_IEEE_F64LE, space,
                                                 H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT),
                                      H5Dclose, "set");
                   },
                   "not stored as one piece"},
        Corruption{"NotFinite", [](hid_t f) { poke(f, "/layers/7/output_outer", 9 + 4, kNan); },
                   "/layers/7: output_outer of head 1 holds a non-finite"},
        Corruption{"SumNotFinite", [](hid_t f) { poke(f, "/layers/7/key_sum", 2, kNan); },
                   "key_sum of head 0"},
        Corruption{"Asymmetric", [](hid_t f) { poke(f, "/layers/3/query_outer", 1, 1e3); },
                   "query_outer of head 0 is not symmetric"},
        Corruption{"NegativeDiagonal", [](hid_t f) { poke(f, "/layers/3/query_outer", 5, -1); },
                   "negative number on its diagonal"},
        Corruption{"OutputMetric", [](hid_t f) { poke(f, "/layers/7/output_metric", 0, kNan); },
                   "output_metric of head 0 holds a non-finite"},
        Corruption{"HalfOfTheSamples",
                   [](hid_t f) { H5Ldelete(f, "/layers/3/value_samples", H5P_DEFAULT); },
                   "value_samples has 0 heads"}),
    [](const auto& test) { return std::string(test.param.name); });

TEST(CorruptStatisticsFile, IsRefusedWhole) {
  const test::TemporaryFolder folder;
  EXPECT_THROW_WITH(load_statistics(folder / "missing.h5"), InputError, "does not exist");
  EXPECT_THROW_WITH(load_statistics(folder.path()), InputError, "not a regular file");
  write_file(folder / "text.h5", "not HDF5 at all");
  EXPECT_THROW_WITH(load_statistics(folder / "text.h5"), InputError, "not an HDF5 file");
  save_layer(folder / "layer.h5", 3, test::example_layer(1));
  EXPECT_THROW_WITH(load_statistics(folder / "layer.h5"), InputError, "oscar-statistics-layer");
  EXPECT_THROW_WITH(load_layer(folder / "layer.h5", 4), InputError,
                    "holds layer 3, expected layer 4");
}

TEST(CorruptStatisticsFile, IsRefusedCutAtAnyLength) {
  const test::TemporaryFolder folder;
  save_statistics(folder / "s.h5", test::example(1));
  const std::string whole = read_file(folder / "s.h5");
  for (std::size_t length = 0; length < whole.size(); length += 97) {
    write_file(folder / "cut.h5", whole.substr(0, length));
    EXPECT_THROW(load_statistics(folder / "cut.h5"), InputError) << length;
  }
}

TEST(CorruptStatisticsFile, WithAnyByteChangedLoadsOrIsRefused) {
  const test::TemporaryFolder folder;
  save_layer(folder / "s.h5", 3, test::example_layer(1));
  const std::string whole = read_file(folder / "s.h5");
  int refused = 0;
  for (std::size_t at = 0; at < whole.size(); at += 7) {
    std::string changed = whole;
    changed[at] = static_cast<char>(~changed[at]);
    write_file(folder / "changed.h5", changed);
    try {
      load_layer(folder / "changed.h5", 3);
    } catch (const InputError&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 100);
}

TEST(Hdf5, ReadsStringsAsH5pyWritesThem) {
  const test::TemporaryFolder folder;
  save_statistics(folder / "s.h5", test::example(1));
  {
    const hdf5::Session session;
    const Handle file = open_writable(folder / "s.h5");
    H5Adelete(file, "model");
    const Handle type(H5Tcopy(H5T_C_S1), H5Tclose, "type");
    H5Tset_size(type, H5T_VARIABLE);
    const Handle space(H5Screate(H5S_SCALAR), H5Sclose, "space");
    const Handle attribute(H5Acreate2(file, "model", type, space, H5P_DEFAULT, H5P_DEFAULT),
                           H5Aclose, "attribute");
    const char* text = "of variable length";
    H5Awrite(attribute, type, &text);
  }
  EXPECT_EQ(load_statistics(folder / "s.h5").model, "of variable length");
}

}  // namespace
}  // namespace oscar
