"""What the doctor says of NUMA nodes and links, on made-up reports of two machines."""

from __future__ import annotations

import pathlib

import pytest

from tf_amp.commands import _doctor_checks as doctor_checks
from tf_amp.commands._doctor_checks import described, nodes_here
from tf_amp.config.amp_config import AmpConfig

# Four GPUs on two sockets, linked by PCIe.
PCIE = """\
\tGPU0\tGPU1\tGPU2\tGPU3\tCPU Affinity\tNUMA Affinity
GPU0\t X \tPIX\tSYS\tSYS\t0-3,8-11\t0
GPU1\tPIX\t X \tSYS\tSYS\t0-3,8-11\t0
GPU2\tSYS\tSYS\t X \tPHB\t4-7,12-15\t1
GPU3\tSYS\tSYS\tPHB\t X \t4-7,12-15\t1

Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes
"""
# Two GPUs with NVLink and a network card, underlined as newer drivers do.
NVLINK = """\
\t\x1b[4mGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m
GPU0\t X \tNV12\tPXB\t0-15\t0\t\tN/A
GPU1\tNV12\t X \tSYS\t0-15\t0\t\tN/A
NIC0\tPXB\tSYS\t X \t\t\t\t
"""
TWO = {"0": "0-3,8-11", "1": "4-7,12-15"}


def test_nodes_links_and_the_command_that_binds_are_said():
    assert described(TWO, PCIE) == (
        "NUMA node 0: CPUs 0-3,8-11, GPU0, GPU1; "
        "NUMA node 1: CPUs 4-7,12-15, GPU2, GPU3; "
        "link PIX: GPU0-GPU1; link SYS: GPU0-GPU2, GPU0-GPU3, GPU1-GPU2, GPU1-GPU3; "
        "link PHB: GPU2-GPU3; "
        "on node 0 alone: numactl --cpunodebind=0 --membind=0 python train.py"
    )


@pytest.mark.parametrize(
    ("nodes", "topology", "said"),
    [
        ({"0": "0-15"}, "", "NUMA node 0: CPUs 0-15"),
        (
            {"0": "0-15"},
            NVLINK,
            "NUMA node 0: CPUs 0-15, GPU0, GPU1; link NV12: GPU0-GPU1",
        ),
        ({"0": "0-15"}, "No devices were found\n", "NUMA node 0: CPUs 0-15"),
        ({}, "", "the kernel reports no NUMA node"),
    ],
)
def test_on_one_node_nothing_is_bound_and_what_is_unclear_is_left_out(
    nodes, topology, said
):
    assert described(nodes, topology) == said


def test_nodes_without_cpus_that_this_process_may_use_do_not_count(
    tmp_path: pathlib.Path,
):
    for node, cpus in {**TWO, "10": ""}.items():
        (tmp_path / f"node{node}").mkdir()
        (tmp_path / f"node{node}" / "cpulist").write_text(f"{cpus}\n")
    assert nodes_here(tmp_path, range(16)) == TWO
    assert nodes_here(tmp_path, [12]) == {"1": "4-7,12-15"}


def test_the_doctor_asks_the_driver_that_it_finds(tmp_path, monkeypatch):
    driver = tmp_path / "nvidia-smi"
    (tmp_path / "topo").write_text(NVLINK)
    driver.write_text('#!/bin/sh\n[ "$*" = "topo -m" ] && cat "${0%/*}/topo"\n')
    driver.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    (finding,) = doctor_checks.machine(AmpConfig())
    assert finding.what == "machine" and not finding.remedy
    assert "link NV12: GPU0-GPU1" in finding.state
    driver.write_text("#!/bin/sh\nexit 9\n")
    (finding,) = doctor_checks.machine(AmpConfig())
    assert "link" not in finding.state
