#pragma once

#include <filesystem>
#include <string>

#include "oscar/rotation/rotation_set.h"

namespace oscar {

/// Reads a rotation file of any format of contract section 4 that holds a matrix a layer or a KV
/// head: v1, v2, v3 (with q_rotation, k_mean, o_rotation), flat {id: tensor}, stacked [L,D,D]. No
/// code in the file is run: the pickle is interpreted by a reader that knows only the globals that
/// torch.load(weights_only=True) needs for tensors. Throws InputError saying what is wrong and
/// where.
RotationSet load_rotations(const std::filesystem::path& path, Side side);

/// Writes format v1 (granularity layer) or v2 (granularity head), or v3 where rows are centred or
/// the matrices are not orthogonal, atomically;
/// torch.load(weights_only=True) accepts it, and the same set gives the same bytes.
void save_rotations(const std::filesystem::path& path, const RotationSet& rotations);

/// The format that save_rotations() writes for these: 1, 2 or 3.
int format_of(const RotationSet& rotations);

/// The published name: "k_rotation_qqt_r_h_pbr.pt", "v_rotation_sst_r_h_pbr.pt", per head
/// "k_rotation_perhead.pt".
std::string rotation_file_name(const RotationSet& rotations);

}  // namespace oscar
