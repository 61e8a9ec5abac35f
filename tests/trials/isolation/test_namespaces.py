"""The table of mounts, as the kernel writes it."""

from training_profiler.trials.isolation.namespaces import NOT_STORED, Mount, read_mounts

MOUNTS = """\
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
23 22 0:21 / /proc rw,nosuid shared:2 - proc proc rw
24 22 0:50 / /home/me/my\\040data rw - nfs4 server:/data rw
25 22 0:51 / /mnt rw master:3 propagate_from:1 - ext4 /dev/vdb rw
26 22 0:52 / /mnt rw - tmpfs tmpfs rw
"""


def test_mounts_are_read_by_their_folder_and_the_last_one_counts() -> None:
    assert read_mounts(MOUNTS) == {
        "/": Mount("/", "ext4"),
        "/proc": Mount("/proc", "proc"),
        "/home/me/my data": Mount("/home/me/my data", "nfs4"),
        "/mnt": Mount("/mnt", "tmpfs"),
    }


def test_file_systems_of_the_kernel_store_nothing() -> None:
    assert all(NOT_STORED.fullmatch(kind) for kind in ("proc", "sysfs", "cgroup", "cgroup2", "devpts"))
    assert not any(NOT_STORED.fullmatch(kind) for kind in ("ext4", "tmpfs", "nfs4", "overlay", "fuse.sshfs"))
