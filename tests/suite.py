#!/usr/bin/env python3
"""What `./dev test` asks about the tests of a build folder.

    suite.py pick BUILD NAME…    the tests of these names (or patterns, or suites), and what ninja must build for them
    suite.py under PYTHON FOLDER BUILD NAME… these tests, which are scripts, under another Python; the log goes into FOLDER/meson-logs
    suite.py tally BUILD=STATUS… results over builds that were tested; each skip with its reason; exit 1 if anything failed

pick prints two lines: the tests, then the targets, each separated by tabs. An unknown name: exit 2, with the nearest ones.
"""
import difflib
import fnmatch
import glob
import json
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor


def introspect(build, what):
    done = subprocess.run(["meson", "introspect", build, what], check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


def matching(tests, *patterns):
    """Names of the tests that are so called, or match; each pattern has to be of one."""
    found = {}
    for pattern in patterns:
        names = [test["name"] for test in tests if test["name"] == pattern] or fnmatch.filter([test["name"] for test in tests], pattern)
        if not names:
            sys.exit(f"dev: no test '{pattern}'")
        found.update(dict.fromkeys(names))
    return list(found)


def files_for(build, names):
    """What ninja must build for the tests of these names."""
    needed = {target for test in introspect(build, "--tests") if test["name"] in names for target in test["depends"]}
    files = [file for target in introspect(build, "--targets") if target["id"] in needed for file in target["filename"]]
    return [os.path.relpath(file, os.path.realpath(build)) for file in files]


def pick(build, *requested):
    tests = introspect(build, "--tests")
    names = [test["name"] for test in tests]
    suites = {suite.split(":")[-1] for test in tests for suite in test["suite"]}
    picked = []
    for name in requested:
        found = [name] if name in names else fnmatch.filter(names, name)
        if not found and name in suites:
            found = [test["name"] for test in tests if name in {suite.split(":")[-1] for suite in test["suite"]}]
        if not found:
            lower = {known.lower(): known for known in [*names, *suites]}
            near = difflib.get_close_matches(name.lower(), lower, n=5, cutoff=0.4)
            near += [known for known in lower if name.lower() in known and known not in near][:5]
            hint = "; near it: " + ", ".join(lower[known] for known in near) if near else "; meson test --list has them"
            print(f"dev: no test '{name}' in {build}{hint}", file=sys.stderr)
            return 2
        picked += [test for test in found if test not in picked]
    print("\t".join(picked))
    print("\t".join(files_for(build, picked)))
    return 0


def run_under(python, test):
    """One line of a log like Meson's."""
    try:
        done = subprocess.run([python, *test["cmd"][1:]], env={**os.environ, **test["env"]}, cwd=test["workdir"], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, errors="replace", timeout=3 * test["timeout"])  # fmt: skip
        result, stdout = {0: "OK", 77: "SKIP"}.get(done.returncode, "FAIL"), done.stdout
    except subprocess.TimeoutExpired as late:
        result, stdout = "TIMEOUT", (late.stdout or b"").decode(errors="replace")
    return {"name": test["name"], "result": result, "stdout": stdout}


def under(python, folder, build, *names):
    tests = [test for test in introspect(build, "--tests") if test["name"] in names]
    os.makedirs(f"{folder}/meson-logs", exist_ok=True)
    failed = 0
    with open(f"{folder}/meson-logs/testlog.json", "w", encoding="utf-8") as log, ThreadPoolExecutor(os.cpu_count()) as pool:
        for number, done in enumerate(pool.map(lambda test: run_under(python, test), tests), 1):
            print(json.dumps(done), file=log, flush=True)
            print(f"{number}/{len(tests)} {done['name']:40} {done['result']}", flush=True)
            if done["result"] not in ("OK", "SKIP"):
                failed += 1
                print(*done["stdout"].splitlines()[-60:], sep="\n")
    return failed > 0


def tally(*builds):
    passed = failed = skipped = 0
    for build in builds:
        directory, status = build.rsplit("=", 1)
        failed_here = 0
        if status == "absent":  # what it needs is not on this machine
            skipped += 1
            print(f"skipped: {directory}: what it needs is not here")
            continue
        for path in glob.glob(f"{directory}/meson-logs/testlog*.json"):
            for line in open(path, encoding="utf-8", errors="replace"):
                test = json.loads(line)
                if test["result"] in ("OK", "EXPECTEDFAIL"):
                    passed += 1
                elif test["result"] in ("SKIP", "IGNORED"):
                    skipped += 1
                    reason = (test.get("stdout") or test.get("stderr") or "no reason given").strip().splitlines()
                    print(f"skipped in {directory}: {test['name']}: {reason[-1] if reason else 'no reason given'}")
                else:
                    failed_here += 1
                    print(f"failed in {directory}: {test['name']} ({test['result']})")
        if status != "0" and not failed_here:
            failed_here = 1
            why = {"build": "it does not build", "check": "findings, see above"}.get(status, f"meson test, status {status}")
            print(f"failed in {directory}: {why}")
        failed += failed_here
    if passed + failed + skipped == 0:
        print("no test ran")
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return failed > 0 or passed + skipped == 0


if __name__ == "__main__":
    commands: dict[str, Callable[..., int]] = {"pick": pick, "under": under, "tally": tally}
    sys.exit(commands[sys.argv[1]](*sys.argv[2:]))
