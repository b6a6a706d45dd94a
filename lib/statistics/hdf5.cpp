#include "statistics/hdf5.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>
#include <type_traits>
#include <utility>

#include "oscar/core/error.h"

#ifdef __SANITIZE_ADDRESS__
/// What HDF5 still holds at exit (see Session) is no leak of ours.
extern "C" const char* __lsan_default_suppressions() {
  return "leak:libhdf5\n";
}
#endif

namespace oscar::hdf5 {

namespace {

constexpr std::size_t kMaxTextBytes = std::size_t{1} << 20;
constexpr std::size_t kMaxNameBytes = 255;

std::mutex library;

void require_success(herr_t status, const std::string& what) {
  if (status < 0) fail("HDF5: {} failed ({})", what, last_error());
}

Handle property_list(hid_t kind) {
  return {H5Pcreate(kind), H5Pclose, "creating a property list"};
}

template <typename T>
hid_t memory_type() {
  if constexpr (std::is_same_v<T, double>) {
    return H5T_NATIVE_DOUBLE;
  } else {
    return H5T_NATIVE_FLOAT;
  }
}

template <typename T>
void write_typed(hid_t group, const std::string& name, std::span<const hsize_t> shape,
                 hid_t file_type, const T* data) {
  const Handle space(H5Screate_simple(static_cast<int>(shape.size()), shape.data(), nullptr),
                     H5Sclose, "creating a data space");
  const Handle properties = property_list(H5P_DATASET_CREATE);
  require_success(H5Pset_obj_track_times(properties, false), "turning time stamps off");
  const Handle dataset(
      H5Dcreate2(group, name.c_str(), file_type, space, H5P_DEFAULT, properties, H5P_DEFAULT),
      H5Dclose, "creating the dataset " + name);
  require_success(H5Dwrite(dataset, memory_type<T>(), H5S_ALL, H5S_ALL, H5P_DEFAULT, data),
                  "writing the dataset " + name);
}

void write_scalar(hid_t object, const std::string& name, hid_t file_type, hid_t type,
                  const void* value) {
  const Handle space(H5Screate(H5S_SCALAR), H5Sclose, "creating a data space");
  const Handle attribute(
      H5Acreate2(object, name.c_str(), file_type, space, H5P_DEFAULT, H5P_DEFAULT), H5Aclose,
      "creating the attribute " + name);
  require_success(H5Awrite(attribute, type, value), "writing the attribute " + name);
}

Handle open_scalar(hid_t object, const std::string& name, H5T_class_t kind, const char* expected,
                   const std::string& where) {
  if (H5Aexists(object, name.c_str()) <= 0)
    fail_input("{}: the attribute \"{}\" is missing", where, name);
  Handle attribute(H5Aopen(object, name.c_str(), H5P_DEFAULT), H5Aclose,
                   "opening the attribute " + name);
  const Handle type(H5Aget_type(attribute), H5Tclose, "reading a type");
  const Handle space(H5Aget_space(attribute), H5Sclose, "reading a data space");
  if (H5Tget_class(type) != kind || H5Sget_simple_extent_npoints(space) != 1) {
    fail_input("{}: the attribute \"{}\" is not {}", where, name, expected);
  }
  return attribute;
}

/// h5py writes its strings so.
std::string read_variable_text(hid_t attribute, hid_t type, const std::string& name,
                               const std::string& where) {
  char* text = nullptr;
  if (H5Aread(attribute, type, &text) < 0 || text == nullptr) {
    fail_input("{}: the attribute \"{}\" cannot be read ({})", where, name, last_error());
  }
  std::string copy(text, ::strnlen(text, kMaxTextBytes));
  H5free_memory(text);
  return copy;
}

void require_hard_link(hid_t parent, const std::string& name, const std::string& where) {
  H5L_info_t info{};
  if (H5Lexists(parent, name.c_str(), H5P_DEFAULT) <= 0 ||
      H5Lget_info(parent, name.c_str(), &info, H5P_DEFAULT) < 0) {
    fail_input("{}: \"{}\" is missing", where, name);
  }
  if (info.type != H5L_TYPE_HARD) {
    fail_input("{}: \"{}\" is a link to somewhere else; the data itself was expected", where, name);
  }
}

Handle open_dataset(hid_t group, const std::string& name, const std::string& where) {
  require_hard_link(group, name, where);
  const hid_t id = H5Dopen2(group, name.c_str(), H5P_DEFAULT);
  if (id < 0) fail_input("{}: \"{}\" is not a readable dataset ({})", where, name, last_error());
  return {id, H5Dclose, "opening a dataset"};
}

}  // namespace

Handle::Handle(hid_t id, herr_t (*close)(hid_t), const std::string& what) : id_(id), close_(close) {
  if (id < 0) fail("HDF5: {} failed ({})", what, last_error());
}

Handle::~Handle() {
  if (id_ >= 0) close_(id_);
}

Handle::Handle(Handle&& other) noexcept : id_(std::exchange(other.id_, -1)), close_(other.close_) {}

Session::Session() : lock_(library) {
  // HDF5 1.10 loses resources of its own when it refuses a damaged file, and prints "infinite loop
  // closing library" at exit. All files are closed here by hand, so its clean-up at exit is not
  // needed.
  [[maybe_unused]] static const herr_t no_cleanup_at_exit = H5dont_atexit();
  H5Eget_auto2(H5E_DEFAULT, &printer_, &printer_data_);
  H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
}

Session::~Session() {
  H5Eset_auto2(H5E_DEFAULT, printer_, printer_data_);
}

std::string last_error() {
  std::string text;
  const auto keep_first = [](unsigned, const H5E_error2_t* error, void* result) -> herr_t {
    auto& kept = *static_cast<std::string*>(result);
    if (kept.empty() && error->desc != nullptr) kept = error->desc;
    return 0;
  };
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, keep_first, &text);
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text.empty() ? "no reason given" : text;
}

Handle create_file(const std::filesystem::path& path) {
  const Handle creation = property_list(H5P_FILE_CREATE);
  require_success(H5Pset_obj_track_times(creation, false), "turning time stamps off");
  const Handle access = property_list(H5P_FILE_ACCESS);
  require_success(H5Pset_libver_bounds(access, H5F_LIBVER_V18, H5F_LIBVER_V18),
                  "fixing the format");
  return {H5Fcreate(path.c_str(), H5F_ACC_TRUNC, creation, access), H5Fclose,
          "creating " + path.string()};
}

Handle open_file(const std::filesystem::path& path) {
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored)) {
    fail_input("{}: does not exist or is not a regular file", path.string());
  }
  if (H5Fis_hdf5(path.c_str()) <= 0) {
    fail_input("{}: is not an HDF5 file (or cannot be read)", path.string());
  }
  const hid_t id = H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT);
  if (id < 0)
    fail_input("{}: cannot be opened ({}); is the copy complete?", path.string(), last_error());
  return {id, H5Fclose, "opening a file"};
}

void flush(hid_t file) {
  require_success(H5Fflush(file, H5F_SCOPE_GLOBAL), "writing the file");
}

Handle create_group(hid_t parent, const std::string& name) {
  const Handle properties = property_list(H5P_GROUP_CREATE);
  require_success(H5Pset_obj_track_times(properties, false), "turning time stamps off");
  return {H5Gcreate2(parent, name.c_str(), H5P_DEFAULT, properties, H5P_DEFAULT), H5Gclose,
          "creating the group " + name};
}

Handle open_group(hid_t parent, const std::string& name, const std::string& where) {
  require_hard_link(parent, name, where);
  const hid_t id = H5Gopen2(parent, name.c_str(), H5P_DEFAULT);
  if (id < 0) fail_input("{}: \"{}\" is not a readable group ({})", where, name, last_error());
  return {id, H5Gclose, "opening a group"};
}

std::vector<std::string> members(hid_t group, std::size_t limit, const std::string& where) {
  H5G_info_t info{};
  if (H5Gget_info(group, &info) < 0) fail_input("{}: cannot be listed ({})", where, last_error());
  if (info.nlinks > limit) {
    fail_input("{}: has {} members; at most {} are expected", where, info.nlinks, limit);
  }
  std::vector<std::string> names;
  for (hsize_t i = 0; i < info.nlinks; ++i) {
    std::string name(kMaxNameBytes + 1, '\0');
    const auto length = H5Lget_name_by_idx(group, ".", H5_INDEX_NAME, H5_ITER_INC, i, name.data(),
                                           name.size(), H5P_DEFAULT);
    if (length < 0 || static_cast<std::size_t>(length) > kMaxNameBytes) {
      fail_input("{}: member {} has no readable name", where, i);
    }
    name.resize(static_cast<std::size_t>(length));
    names.push_back(std::move(name));
  }
  return names;
}

bool has_member(hid_t group, const std::string& name) {
  return H5Lexists(group, name.c_str(), H5P_DEFAULT) > 0;
}

bool has_attribute(hid_t object, const std::string& name) {
  return H5Aexists(object, name.c_str()) > 0;
}

void write_attribute(hid_t object, const std::string& name, const std::string& value) {
  const Handle type(H5Tcopy(H5T_C_S1), H5Tclose, "copying a type");
  require_success(H5Tset_size(type, value.size() + 1), "sizing a string");
  require_success(H5Tset_cset(type, H5T_CSET_UTF8), "marking a string as UTF-8");
  write_scalar(object, name, type, type, value.c_str());
}

void write_attribute(hid_t object, const std::string& name, std::int64_t value) {
  write_scalar(object, name, H5T_STD_I64LE, H5T_NATIVE_INT64, &value);
}

std::string read_text(hid_t object, const std::string& name, const std::string& where) {
  const Handle attribute = open_scalar(object, name, H5T_STRING, "one string", where);
  const Handle type(H5Aget_type(attribute), H5Tclose, "reading a type");
  if (H5Tis_variable_str(type) > 0) return read_variable_text(attribute, type, name, where);
  const std::size_t size = H5Tget_size(type);
  if (size > kMaxTextBytes) {
    fail_input("{}: the attribute \"{}\" has {} bytes; at most {} are expected", where, name, size,
               kMaxTextBytes);
  }
  std::string text(size, '\0');
  if (H5Aread(attribute, type, text.data()) < 0) {
    fail_input("{}: the attribute \"{}\" cannot be read ({})", where, name, last_error());
  }
  text.resize(std::min(text.find('\0'), text.size()));
  return text;
}

std::int64_t read_integer(hid_t object, const std::string& name, const std::string& where) {
  const Handle attribute = open_scalar(object, name, H5T_INTEGER, "one integer", where);
  std::int64_t value = 0;
  if (H5Aread(attribute, H5T_NATIVE_INT64, &value) < 0) {
    fail_input("{}: the attribute \"{}\" cannot be read ({})", where, name, last_error());
  }
  return value;
}

void write_array(hid_t group, const std::string& name, std::span<const hsize_t> shape,
                 const double* data) {
  write_typed(group, name, shape, H5T_IEEE_F64LE, data);
}

void write_array(hid_t group, const std::string& name, std::span<const hsize_t> shape,
                 const float* data) {
  write_typed(group, name, shape, H5T_IEEE_F32LE, data);
}

std::vector<hsize_t> shape_of(hid_t group, const std::string& name, std::size_t axes,
                              const std::string& where) {
  const Handle dataset = open_dataset(group, name, where);
  const Handle space(H5Dget_space(dataset), H5Sclose, "reading a data space");
  const int rank = H5Sget_simple_extent_ndims(space);
  if (rank != static_cast<int>(axes)) {
    fail_input("{}: \"{}\" has {} axes, expected {}", where, name, rank, axes);
  }
  std::vector<hsize_t> shape(axes);
  H5Sget_simple_extent_dims(space, shape.data(), nullptr);
  return shape;
}

template <typename T>
std::vector<T> read_array(hid_t group, const std::string& name, std::span<const hsize_t> shape,
                          const std::string& where) {
  const std::vector<hsize_t> found = shape_of(group, name, shape.size(), where);
  if (!std::equal(found.begin(), found.end(), shape.begin())) {
    fail_input("{}: \"{}\" is [{}], expected [{}]", where, name, fmt::join(found, ", "),
               fmt::join(shape, ", "));
  }
  const Handle dataset = open_dataset(group, name, where);
  const Handle type(H5Dget_type(dataset), H5Tclose, "reading a type");
  if (H5Tget_class(type) != H5T_FLOAT || H5Tget_size(type) != sizeof(T)) {
    fail_input("{}: \"{}\" does not hold float{} numbers", where, name, 8 * sizeof(T));
  }
  const Handle properties(H5Dget_create_plist(dataset), H5Pclose, "reading a property list");
  hsize_t file_bytes = 0;
  const Handle file(H5Iget_file_id(dataset), H5Fclose, "finding a dataset's file");
  require_success(H5Fget_filesize(file, &file_bytes), "reading a file's size");
  // A division a factor, because the product of hostile sizes overflows.
  hsize_t allowed = file_bytes / sizeof(T);
  for (const hsize_t size : shape) allowed = size == 0 ? allowed : allowed / size;
  const hsize_t count =
      std::accumulate(shape.begin(), shape.end(), hsize_t{1}, std::multiplies<>());
  if (H5Pget_layout(properties) != H5D_CONTIGUOUS || H5Pget_external_count(properties) != 0 ||
      (count > 0 && allowed == 0) || H5Dget_storage_size(dataset) != count * sizeof(T)) {
    fail_input("{}: \"{}\" is not stored as one piece of its full size in this file", where, name);
  }
  std::vector<T> data(count);
  if (H5Dread(dataset, memory_type<T>(), H5S_ALL, H5S_ALL, H5P_DEFAULT, data.data()) < 0) {
    fail_input("{}: \"{}\" cannot be read ({})", where, name, last_error());
  }
  return data;
}

template std::vector<double> read_array<double>(hid_t, const std::string&, std::span<const hsize_t>,
                                                const std::string&);
template std::vector<float> read_array<float>(hid_t, const std::string&, std::span<const hsize_t>,
                                              const std::string&);

}  // namespace oscar::hdf5
