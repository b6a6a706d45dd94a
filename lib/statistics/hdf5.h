#pragma once

#include <hdf5.h>

#include <cstdint>
#include <filesystem>
#include <mutex>
#include <span>
#include <string>
#include <vector>

/// Thin ownership and typed access over the HDF5 C API: what the statistics files need, nothing
/// more. `where` in the reading functions begins the message of the InputError they throw.
namespace oscar::hdf5 {

/// An owned identifier. Throws Error with the library's own words if it was not created.
class Handle {
 public:
  Handle(hid_t id, herr_t (*close)(hid_t), const std::string& what);
  ~Handle();
  Handle(Handle&& other) noexcept;
  Handle& operator=(Handle&&) = delete;
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  operator hid_t() const { return id_; }

 private:
  hid_t id_;
  herr_t (*close_)(hid_t);
};

/// Held around every use of the library: it is not thread-safe, and prints its errors unless told
/// not to.
class Session {
 public:
  Session();
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

 private:
  std::unique_lock<std::mutex> lock_;
  H5E_auto2_t printer_ = nullptr;
  void* printer_data_ = nullptr;
};

/// What the library said about its last failure.
std::string last_error();

/// Files written here hold no time stamps and a fixed format (HDF5 1.8), so that equal content
/// gives equal bytes with every version of the library.
Handle create_file(const std::filesystem::path& path);
Handle open_file(const std::filesystem::path& path);
/// Throws Error if what was written cannot reach the file (disk full).
void flush(hid_t file);
Handle create_group(hid_t parent, const std::string& name);
/// Follows only hard links: a link into another file is refused.
Handle open_group(hid_t parent, const std::string& name, const std::string& where);
/// The names of a group's members, in the order of their names. Throws InputError above `limit`.
std::vector<std::string> members(hid_t group, std::size_t limit, const std::string& where);
bool has_member(hid_t group, const std::string& name);
bool has_attribute(hid_t object, const std::string& name);

void write_attribute(hid_t object, const std::string& name, const std::string& value);
void write_attribute(hid_t object, const std::string& name, std::int64_t value);
std::string read_text(hid_t object, const std::string& name, const std::string& where);
std::int64_t read_integer(hid_t object, const std::string& name, const std::string& where);

void write_array(hid_t group, const std::string& name, std::span<const hsize_t> shape,
                 const double* data);
void write_array(hid_t group, const std::string& name, std::span<const hsize_t> shape,
                 const float* data);
/// The sizes of a dataset's axes. Throws InputError if it is absent or has another number of axes.
std::vector<hsize_t> shape_of(hid_t group, const std::string& name, std::size_t axes,
                              const std::string& where);
/// Reads a dataset that must have exactly this shape, be floating point of T's size and lie as one
/// piece inside this file (which bounds what is allocated by the file's size).
template <typename T>
std::vector<T> read_array(hid_t group, const std::string& name, std::span<const hsize_t> shape,
                          const std::string& where);

}  // namespace oscar::hdf5
