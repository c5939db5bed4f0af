#!/usr/bin/env bash
# Puts together the compiler of CUDA Toolkit 12.4 in FOLDER, for dev/check_toolkits.sh: Debian 13's package, and the headers of NVIDIA's Python
# packages, 115 MB to fetch. It compiles, but it has no libraries to link with.
#   dev/fetch_cuda_12_4.sh FOLDER
# The system is not changed: apt works in FOLDER, with the mirror of Debian that this machine has. If that fails, the reason is printed, and FOLDER
# is removed.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=$(realpath -m "${1:?usage: dev/fetch_cuda_12_4.sh FOLDER}")
[ ! -e "$folder" ] || { echo "fetch_cuda_12_4: $folder exists; expected a new folder" >&2; exit 2; }
give_up() {
    rm -rf "$folder"
    echo "fetch_cuda_12_4: $1" >&2
    exit 1
}
command -v apt-get >/dev/null || give_up "this system has no apt-get"
mirror=$(apt-get indextargets --format '$(REPO_URI)' | grep -m 1 '/debian/$' || true)
[ -n "$mirror" ] || give_up "this machine's apt has no mirror of Debian"
apt=$folder/apt unpacked=$folder/unpacked log=$folder/log
mkdir -p "$apt"/{lists/partial,archives/partial} "$unpacked" "$folder"/{bin,include,nvvm/bin}
echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror trixie non-free" >"$apt/sources.list"
touch "$apt/status"
cat >"$apt/apt.conf" <<END
Dir::Etc::sourcelist "$apt/sources.list";
Dir::Etc::sourceparts "/dev/null";
Dir::State "$apt";
Dir::State::status "$apt/status";
Dir::Cache "$apt";
APT::Sandbox::User "root";
Acquire::Retries "1";
Acquire::http::Timeout "20";
END
if ! (cd "$apt" && export APT_CONFIG=$apt/apt.conf && apt-get update && apt-get download nvidia-cuda-toolkit) >"$log" 2>&1; then
    give_up "Debian 13's nvidia-cuda-toolkit cannot be fetched ($(grep '^[EW]:' "$log" | tail -n 1))"
fi
dpkg -x "$apt"/nvidia-cuda-toolkit_*.deb "$unpacked"
scripts/python_packages.sh "$folder/headers" nvidia-cuda-runtime-cu12==12.4.127 nvidia-cuda-nvcc-cu12==12.4.131 nvidia-cuda-cccl-cu12==12.4.127.post1 2>"$log" ||
    true
[ -d "$folder/headers" ] || give_up "$(cat "$log")"

debian=$unpacked/usr/lib/nvidia-cuda-toolkit
mv "$debian"/bin/{nvcc,crt} "$unpacked"/usr/bin/{cudafe++,fatbinary,ptxas,nvlink} "$folder/bin/"
mv "$debian/bin/cicc" "$folder/nvvm/bin/"
mv "$debian/libdevice" "$folder/nvvm/"
for package in "$folder"/headers/lib/python*/site-packages/nvidia/cuda_{runtime,nvcc,cccl}; do cp -r "$package/include/." "$folder/include/"; done
# Debian's own file names the system's folders.
cat >"$folder/bin/nvcc.profile" <<'END'
TOP = $(_HERE_)/..
NVVMIR_LIBRARY_DIR = $(TOP)/nvvm/libdevice
PATH += $(TOP)/nvvm/bin:$(_HERE_):
INCLUDES += "-I$(TOP)/include" $(_SPACE_)
END
rm -rf "$apt" "$unpacked" "$folder/headers" "$log"
"$folder/bin/nvcc" --version | grep -q 'release 12\.4,' || give_up "Debian 13's nvidia-cuda-toolkit is of another CUDA than 12.4"
