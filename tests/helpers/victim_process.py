"""A process with threads that do as told, for tests that change priorities of real threads.

Commands on stdin, one a line: `threads COUNT` (more of them), `from N` (one born of thread N),
`end N`, `child N` (a process born of thread N, which sleeps).
Each is answered with one line: a thread or process id, or "ok". It ends with its stdin, and by
itself after two minutes.
"""

import os
import queue
import subprocess
import sys
import threading

tasks: list[queue.SimpleQueue[str]] = []
answer: queue.SimpleQueue[str] = queue.SimpleQueue()


def live(inbox: "queue.SimpleQueue[str]") -> None:
    answer.put(str(threading.get_native_id()))
    while (task := inbox.get()) != "end":
        if task == "thread":
            start()
        elif task == "child":
            child = subprocess.Popen(["sleep", "120"], stdin=subprocess.DEVNULL)
            children.append(child)
            answer.put(str(child.pid))


def start() -> None:
    inbox: queue.SimpleQueue[str] = queue.SimpleQueue()
    tasks.append(inbox)
    threading.Thread(target=live, args=(inbox,), daemon=True).start()


children: list["subprocess.Popen[bytes]"] = []
threading.Timer(120, os._exit, (9,)).start()
try:
    for line in sys.stdin:
        match line.split():
            case ["threads", count]:
                for _ in range(int(count)):
                    start()
                print(*(answer.get() for _ in range(int(count))), flush=True)
            case ["from", nth]:
                tasks[int(nth)].put("thread")
                print(answer.get(), flush=True)
            case ["child", nth]:
                tasks[int(nth)].put("child")
                print(answer.get(), flush=True)
            case ["end", nth]:
                tasks[int(nth)].put("end")
                print("ok", flush=True)
finally:
    for process in children:
        process.kill()
        process.wait()
    os._exit(0)
