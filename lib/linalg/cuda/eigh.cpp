#include <cuda_runtime_api.h>
#include <cusolverDn.h>

#include <algorithm>
#include <memory>
#include <string>

#include "linalg/eigh_backend.h"
#include "oscar/core/cuda_check.h"

#define OSCAR_CUSOLVER_CHECK(call)                                                              \
  do {                                                                                          \
    const cusolverStatus_t status_ = (call);                                                    \
    if (status_ != CUSOLVER_STATUS_SUCCESS) {                                                   \
      ::oscar::fail_call(#call, "cuSOLVER status " + std::to_string(static_cast<int>(status_)), \
                         __FILE__, __LINE__);                                                   \
    }                                                                                           \
  } while (false)

namespace oscar::cuda {

namespace {

/// Doubles of matrices in one call to the solver (256 MiB), so that any batch fits the device.
constexpr std::size_t kMaxDoubles = std::size_t{1} << 25;

/// An owned handle of a C library: destroyed by `destroy`, errors at that point ignored.
template <typename T>
using Owned = std::unique_ptr<std::remove_pointer_t<T>, cusolverStatus_t (*)(T)>;

template <typename T>
Owned<T> create(cusolverStatus_t (*make)(T*), cusolverStatus_t (*destroy)(T)) {
  T raw = nullptr;
  OSCAR_CUSOLVER_CHECK(make(&raw));
  return Owned<T>(raw, destroy);
}

/// Device memory of `count` elements, at least one byte.
template <typename T>
class DeviceArray {
 public:
  explicit DeviceArray(std::size_t count) {
    void* memory = nullptr;
    OSCAR_CUDA_CHECK(cudaMalloc(&memory, std::max<std::size_t>(count * sizeof(T), 1)));
    data_.reset(static_cast<T*>(memory));
  }
  T* get() const { return data_.get(); }

 private:
  struct Free {
    void operator()(T* memory) const { cudaFree(memory); }
  };
  std::unique_ptr<T, Free> data_;
};

/// A back end of row-major matrices: what cuSOLVER, being column-major, calls the upper triangle is
/// our lower one.
constexpr cublasFillMode_t kOurLowerTriangle = CUBLAS_FILL_MODE_UPPER;

#if CUSOLVER_VERSION >= 11701  // XsyevBatched came with CUDA 12.6 update 2

void solve(cusolverDnHandle_t solver, int n, int batch, double* matrices, double* values,
           int* info) {
  const auto params = create<cusolverDnParams_t>(cusolverDnCreateParams, cusolverDnDestroyParams);
  std::size_t device_bytes = 0, host_bytes = 0;
  OSCAR_CUSOLVER_CHECK(cusolverDnXsyevBatched_bufferSize(
      solver, params.get(), CUSOLVER_EIG_MODE_VECTOR, kOurLowerTriangle, n, CUDA_R_64F, matrices, n,
      CUDA_R_64F, values, CUDA_R_64F, &device_bytes, &host_bytes, batch));
  const DeviceArray<char> device_work(device_bytes);
  std::vector<char> host_work(host_bytes);
  OSCAR_CUSOLVER_CHECK(cusolverDnXsyevBatched(
      solver, params.get(), CUSOLVER_EIG_MODE_VECTOR, kOurLowerTriangle, n, CUDA_R_64F, matrices, n,
      CUDA_R_64F, values, CUDA_R_64F, device_work.get(), device_bytes, host_work.data(), host_bytes,
      info, batch));
  OSCAR_CUDA_CHECK(cudaDeviceSynchronize());  // the work space must outlive the solver
}

#else

void solve(cusolverDnHandle_t solver, int n, int batch, double* matrices, double* values,
           int* info) {
  const auto params = create<syevjInfo_t>(cusolverDnCreateSyevjInfo, cusolverDnDestroySyevjInfo);
  OSCAR_CUSOLVER_CHECK(cusolverDnXsyevjSetSortEig(params.get(), 1));
  int doubles = 0;
  OSCAR_CUSOLVER_CHECK(cusolverDnDsyevjBatched_bufferSize(solver, CUSOLVER_EIG_MODE_VECTOR,
                                                          kOurLowerTriangle, n, matrices, n, values,
                                                          &doubles, params.get(), batch));
  const DeviceArray<double> work(static_cast<std::size_t>(doubles));
  OSCAR_CUSOLVER_CHECK(cusolverDnDsyevjBatched(solver, CUSOLVER_EIG_MODE_VECTOR, kOurLowerTriangle,
                                               n, matrices, n, values, work.get(), doubles, info,
                                               params.get(), batch));
  OSCAR_CUDA_CHECK(cudaDeviceSynchronize());  // the work space must outlive the solver
}

#endif

/// Solves matrices [first, first + batch) and stores their systems.
void solve_chunk(cusolverDnHandle_t solver, const std::vector<const Matrix*>& matrices,
                 std::size_t first, int batch, std::vector<Eigensystem>& result) {
  const auto n = static_cast<int>(matrices.front()->rows());
  const std::size_t size = static_cast<std::size_t>(n) * static_cast<std::size_t>(n);
  const auto count = static_cast<std::size_t>(batch);
  std::vector<double> host(count * size);
  for (std::size_t i = 0; i < count; ++i) {
    std::copy_n(matrices[first + i]->data(), size, host.data() + i * size);
  }
  const DeviceArray<double> device_matrices(count * size);
  const DeviceArray<double> device_values(count * static_cast<std::size_t>(n));
  const DeviceArray<int> device_info(count);
  OSCAR_CUDA_CHECK(cudaMemcpy(device_matrices.get(), host.data(), host.size() * sizeof(double),
                              cudaMemcpyHostToDevice));
  solve(solver, n, batch, device_matrices.get(), device_values.get(), device_info.get());

  std::vector<double> values(count * static_cast<std::size_t>(n));
  std::vector<int> info(count);
  OSCAR_CUDA_CHECK(cudaMemcpy(host.data(), device_matrices.get(), host.size() * sizeof(double),
                              cudaMemcpyDeviceToHost));
  OSCAR_CUDA_CHECK(cudaMemcpy(values.data(), device_values.get(), values.size() * sizeof(double),
                              cudaMemcpyDeviceToHost));
  OSCAR_CUDA_CHECK(cudaMemcpy(info.data(), device_info.get(), info.size() * sizeof(int),
                              cudaMemcpyDeviceToHost));
  for (std::size_t i = 0; i < count; ++i) {
    if (info[i] != 0) {
      fail("the CUDA eigensolver did not converge for matrix {} of {} of size {} (info {})",
           first + i, matrices.size(), n, info[i]);
    }
    result[first + i].values =
        Eigen::Map<const Vector>(values.data() + i * static_cast<std::size_t>(n), n);
    result[first + i].vectors = Eigen::Map<const Eigen::MatrixXd>(host.data() + i * size, n, n);
  }
}

}  // namespace

std::vector<Eigensystem> eigh_one_size(const std::vector<const Matrix*>& matrices,
                                       int device_index) {
  OSCAR_CUDA_CHECK(cudaSetDevice(device_index));
  const auto solver = create<cusolverDnHandle_t>(cusolverDnCreate, cusolverDnDestroy);
  const auto size = static_cast<std::size_t>(matrices.front()->size());
  const std::size_t chunk = std::max<std::size_t>(1, kMaxDoubles / size);
  std::vector<Eigensystem> result(matrices.size());
  for (std::size_t first = 0; first < matrices.size(); first += chunk) {
    const auto batch = static_cast<int>(std::min(chunk, matrices.size() - first));
    solve_chunk(solver.get(), matrices, first, batch, result);
  }
  return result;
}

}  // namespace oscar::cuda
