"""What a machine tells of its devices, and what is concluded: no more than that.

The machines are made up, see `topology_samples`.
"""

import stat

import pytest

from tests.topology_samples import (
    GPUS,
    NODES,
    NVLINK_TOPOLOGY,
    PCIE_TOPOLOGY,
    QUERY,
    write_tree,
)
from tf_amp.commands import cli
from tf_amp.commands.machine.advice import advise, conclusions
from tf_amp.commands.machine.processors import (
    cpu_list,
    cpu_numbers,
    gpus_from_query,
    links_from_topology,
    machine_of,
    weakest_of,
)
from tf_amp.errors import UnclearMachineError

ALL = range(16)


def advice_of(root, *, query=QUERY, topology=PCIE_TOPOLOGY, allowed=ALL):
    """Return (what, because, command) for each piece of advice."""
    links = links_from_topology(topology) if topology else None
    pieces = advise(machine_of(root, allowed), gpus_from_query(query), links)
    return [(piece.what, piece.state, piece.remedy) for piece in pieces]


def test_the_kernel_tells_of_nodes_cores_and_gpus(tmp_path):
    machine = machine_of(write_tree(tmp_path), ALL)
    assert [node.number for node in machine.nodes] == [0, 1]
    assert machine.nodes[1].cores == ((4, 12), (5, 13), (6, 14), (7, 15))
    assert (machine.cores, machine.cpus, machine.quota) == (8, 16, None)
    assert list(machine.gpus.items()) == [
        (address, int(node)) for address, _, _, node in GPUS
    ]


def test_cpus_that_a_process_may_not_use_do_not_count(tmp_path):
    machine = machine_of(write_tree(tmp_path), [0, 1, 8, 2])
    assert [node.number for node in machine.nodes] == [0]
    assert machine.nodes[0].cores == ((0, 8), (1,), (2,))


def test_a_tree_that_tells_nothing_gives_an_empty_machine(tmp_path):
    machine = machine_of(tmp_path, ALL)
    assert (machine.nodes, machine.gpus, machine.quota) == ((), {}, None)
    advice = advice_of(tmp_path, query="", topology=None)
    assert [command for *_, command in advice[:-1]] == ["", ""]
    assert "reports no NUMA node" in advice[0][1]
    assert "reports no cores: no advice" in advice[1][1]


@pytest.mark.parametrize("text", ["", "0", "0-3,8-11", "1,3,5", "0-1,3"])
def test_lists_of_cpus_read_back_as_written(text):
    assert cpu_list(cpu_numbers(text)) == text


def test_links_are_read_with_and_without_escapes_and_network_cards():
    pcie, nvlink = map(links_from_topology, (PCIE_TOPOLOGY, NVLINK_TOPOLOGY))
    assert pcie == {
        (0, 1): "PIX",
        (0, 2): "SYS",
        (0, 3): "SYS",
        (1, 2): "SYS",
        (1, 3): "SYS",
        (2, 3): "PHB",
    }
    assert nvlink == {(0, 1): "NV12"}
    assert (weakest_of(pcie), weakest_of(nvlink)) == ("SYS", "NV")


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        (links_from_topology, "No devices were found\n"),
        (links_from_topology, PCIE_TOPOLOGY.replace("PIX", "???", 1)),
        (gpus_from_query, "NVIDIA-SMI has failed because it couldn't communicate\n"),
        (gpus_from_query, "0, [N/A], Tesla V100\n"),
    ],
)
def test_output_of_another_form_is_named_and_not_guessed_from(parse, text):
    with pytest.raises(UnclearMachineError, match="nvidia-smi"):
        parse(text)


def test_workers_get_their_share_of_the_node_their_gpu_hangs_on(tmp_path):
    advice = advice_of(write_tree(tmp_path))
    assert advice[:4] == [
        (
            "GPU0",
            "for a worker of its own: it hangs on node 0, 2 of its 4 cores",
            "numactl --physcpubind=0-1,8-9 --membind=0 python train.py",
        ),
        (
            "GPU1",
            "for a worker of its own: it hangs on node 0, 2 of its 4 cores",
            "numactl --physcpubind=2-3,10-11 --membind=0 python train.py",
        ),
        (
            "GPU2",
            "for a worker of its own: it hangs on node 1, 2 of its 4 cores",
            "numactl --physcpubind=4-5,12-13 --membind=1 python train.py",
        ),
        (
            "GPU3",
            "for a worker of its own: it hangs on node 1, 2 of its 4 cores",
            "numactl --physcpubind=6-7,14-15 --membind=1 python train.py",
        ),
    ]
    threads, reduction = advice[4:]
    assert threads[2] == "export TF_NUM_INTRAOP_THREADS=2 TF_NUM_INTEROP_THREADS=2"
    assert "2 cores of 2 hyperthreads" in threads[1]
    assert reduction[2].endswith('(all_reduce="bfloat16")')
    assert "the weakest of 6 links is PCIe and the link between NUMA" in reduction[1]


def test_a_gpu_whose_node_is_not_told_gets_no_line(tmp_path):
    devices = (*GPUS[:3], (*GPUS[3][:3], "-1"))
    advice = advice_of(write_tree(tmp_path, devices=devices))
    lines = {what: (because, command) for what, because, command in advice}
    assert lines["GPU3"] == (
        "no word of a NUMA node with free CPUs for 0000:d8:00.0: no advice",
        "",
    )
    # The other one of node 1 has its cores to itself.
    assert "--physcpubind=4-7,12-15 --membind=1" in lines["GPU2"][1]


def test_without_gpus_there_is_a_worker_for_each_node(tmp_path):
    root = write_tree(tmp_path, devices=(), threads=1)
    first, second, threads, reduction = advice_of(root, query="", topology=None)
    assert first[1:] == (
        "for a worker of its own on NUMA node 0",
        "numactl --physcpubind=0-3,8-11 --membind=0 python train.py",
    )
    assert second[2].startswith("numactl --physcpubind=4-7,12-15 --membind=1")
    assert threads[2] == "" and "8 cores of one CPU each" in threads[1]
    assert reduction[2].endswith('(all_reduce="float32")')


def test_on_one_node_nothing_is_bound_but_hyperthreads_are_noted(tmp_path):
    advice = advice_of(write_tree(tmp_path, nodes=("0-15",)))
    assert "one NUMA node: there is nothing to bind" in advice[0][1]
    assert advice[1][2].startswith("export TF_NUM_INTRAOP_THREADS=8 ")


def test_a_container_s_share_of_time_limits_threads(tmp_path):
    root = write_tree(tmp_path, nodes=("0-15",), quota="250000 100000")
    threads = advice_of(root)[1]
    assert "grants 2.5 of the 16 CPUs" in threads[1]
    assert threads[2] == "export TF_NUM_INTRAOP_THREADS=2 TF_NUM_INTEROP_THREADS=2"


def test_the_exchange_is_advised_from_the_weakest_link(tmp_path):
    root = write_tree(tmp_path)
    two = "".join(QUERY.splitlines(keepends=True)[:2])
    one = QUERY.splitlines(keepends=True)[0]
    nvlink = advice_of(root, query=two, topology=NVLINK_TOPOLOGY)[-1]
    assert "is NVLink" in nvlink[1] and 'all_reduce="float32"' in nvlink[2]
    assert advice_of(root, query=one, topology=None)[-1][1:] == (
        "one GPU: there is nothing to reduce on this machine",
        "",
    )
    silent = advise(machine_of(root, ALL), gpus_from_query(two), {})[-1]
    assert silent.state.endswith("no advice") and not silent.remedy


def test_findings_list_gpus_and_links_and_the_order_of_numbers(tmp_path):
    machine = machine_of(write_tree(tmp_path), ALL)
    gpus, links = gpus_from_query(QUERY), links_from_topology(PCIE_TOPOLOGY)
    found = {each.what: each for each in conclusions(machine, gpus, links)}
    assert found["link PIX"].state == "PCIe, one switch: GPUs 0-1"
    assert found["link SYS"].state.endswith("GPUs 0-2, 0-3, 1-2, 1-3")
    assert found["numbers"].remedy == "export CUDA_DEVICE_ORDER=PCI_BUS_ID"
    unseen = {each.what: each for each in conclusions(machine, (), None)}
    assert "on the bus, but nvidia-smi reports none" in unseen["GPU"].state


def test_the_command_asks_the_driver_that_it_finds(tmp_path, monkeypatch, capsys):
    driver = tmp_path / "nvidia-smi"
    (tmp_path / "query").write_text(QUERY)
    (tmp_path / "topo").write_text(PCIE_TOPOLOGY)
    driver.write_text(
        '#!/bin/sh\ncase "$1" in topo) cat "$(dirname "$0")/topo";; '
        '*) cat "$(dirname "$0")/query";; esac\n'
    )
    driver.chmod(driver.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert cli.main(["doctor", "--devices"]) == 0
    printed = capsys.readouterr().out
    assert "TensorFlow sees CPU:0" in printed
    assert "Tesla V100-PCIE-32GB, 0000:3b:00.0" in printed
    assert 'mirrored_strategy(all_reduce="bfloat16")' in printed
    driver.write_text("#!/bin/sh\nexit 9\n")
    assert cli.main(["doctor", "--devices"]) == 0
    printed = capsys.readouterr().out
    assert "exit status 9" in printed and "nothing is concluded" in printed


def test_samples_are_of_the_size_of_the_made_up_machine():
    assert sum(len(cpu_numbers(cpus)) for cpus in NODES) == len(ALL)
