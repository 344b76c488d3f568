"""A bell that says "there may be work": rung when a row is made, heard by this process's dispatcher, missed by nobody.

Nobody misses it because it is only a hint: the dispatcher looks at the database every second anyway.
"""

from __future__ import annotations

import threading

bell = threading.Event()
