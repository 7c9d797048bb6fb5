"""Import each named module alone, in a child that has no module of paceline yet, with warnings as errors.

Called as ``import_each_alone.py PRELOAD MODULE...``; PRELOAD is a comma-separated list of third-party modules that are
imported once before the children are forked (a fresh interpreter per module would spend seconds on torch each time).
Prints a JSON object: module -> {"error": traceback or "", "loaded": names of all modules loaded in the end}.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
import warnings


def import_alone(module: str) -> dict[str, object]:
    warnings.simplefilter("error")
    try:
        importlib.import_module(module)
        error = ""
    except BaseException:
        error = traceback.format_exc()
    return {"error": error, "loaded": sorted(sys.modules)}


def in_child(module: str) -> dict[str, object]:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        with os.fdopen(writing, "w") as pipe:
            json.dump(import_alone(module), pipe)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        outcome = json.load(pipe)
    os.waitpid(child, 0)
    return outcome


def main(preload: str, modules: list[str]) -> None:
    for name in filter(None, preload.split(",")):
        importlib.import_module(name)
    print(json.dumps({module: in_child(module) for module in modules}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
