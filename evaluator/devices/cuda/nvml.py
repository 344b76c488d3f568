"""Which NVIDIA GPUs there are, through NVML. Unlike numbers, NVML and CUDA read UUIDs alike."""

from __future__ import annotations

import os
from importlib.metadata import PackageNotFoundError, version


def is_usable() -> bool:
    """Whether there is an NVIDIA GPU that is not hidden, and a torch that was built for one."""
    import pynvml

    if os.environ.get("CUDA_VISIBLE_DEVICES", "0").strip() in ("", "-1"):
        return False
    try:
        pynvml.nvmlInit()
        return bool(pynvml.nvmlDeviceGetCount() > 0) and "+cpu" not in version("torch")
    except (pynvml.NVMLError, PackageNotFoundError):
        return False


def memory_bytes(uuid: str) -> int:
    """All memory of a GPU; :func:`visible` must have been called."""
    import pynvml

    return int(pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByUUID(uuid)).total)


def visible() -> list[str]:
    """UUIDs of the GPUs that this process may use."""
    try:
        import pynvml

        pynvml.nvmlInit()
        count = pynvml.nvmlDeviceGetCount()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
        every = [str(pynvml.nvmlDeviceGetUUID(handle)) for handle in handles]
    except Exception:  # noqa: BLE001 - NVML raises its own kinds, a missing library another
        return []
    return allowed(every, os.environ.get("CUDA_VISIBLE_DEVICES"))


def allowed(every: list[str], setting: str | None) -> list[str]:
    """The GPUs that ``CUDA_VISIBLE_DEVICES`` leaves, in its order."""
    if setting is None:
        return every
    chosen = []
    for word in (part.strip() for part in setting.split(",")):
        if word.isdigit() and int(word) < len(every):
            chosen.append(every[int(word)])
        elif word in every or word.startswith("MIG-"):
            chosen.append(word)
        else:
            break  # CUDA also ignores everything after a name that it does not know
    return chosen
