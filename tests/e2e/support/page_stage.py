"""A daemon with work in every state, for looking at the page."""

import json
from pathlib import Path
from typing import Any

from tests.e2e.support.ensembles import YES, answer, await_running_task, cast, rest, rule, start
from tests.e2e.support.instance import Instance
from tests.e2e.support.repositories import make_repository

ORDERS = """class Orders:
    def page(self, number, limit):
        rows = self.base.offset(number * limit).limit(limit)
        return list(rows)
"""
BY_CURSOR = """class Orders:
    def page(self, after, limit):
        rows = self.base.where(self.behind(after)).limit(limit + 1)
        return list(rows)

    def behind(self, after):
        return (self.created_at, self.id) > (after.created_at, after.id)
"""
PLAN = {
    "subgoals": [
        {"id": "names", "title": "Token names", "task": "PART-NAMES"},
        {"id": "tokens", "title": "Tokens, both themes", "task": "PART-T", "depends_on": ["names"]},
        {"id": "charts", "title": "Charts read them", "task": "PART-C", "depends_on": ["names"]},
        {"id": "mails", "title": "E-mail templates", "task": "PART-M", "depends_on": ["names"]},
        {
            "id": "switch",
            "title": "Theme switch",
            "task": "PART-S",
            "depends_on": ["tokens", "charts"],
        },
    ]
}
RELEASE = [
    {"id": "freeze", "title": "Freeze the API", "task": "PART-NAMES"},
    {"id": "notes", "title": "Release notes", "task": "PART-N", "depends_on": ["freeze"]},
    {"id": "fuzz", "title": "Fuzz the importer", "task": "PART-F", "depends_on": ["freeze"],
     "kind": "loop", "checks": ["true"]},
    {"id": "load", "title": "Load test", "task": "PART-L", "depends_on": ["notes", "fuzz"]},
    {"id": "tag", "title": "Tag it", "task": "PART-G", "depends_on": ["freeze", "load"]},
]  # fmt: skip
SERIES = (
    'f=$(readlink -f "$(cat "$(git rev-parse --git-path objects/info/alternates)")")/../turn;'
    ' n=$(cat "$f" 2>/dev/null || echo 0);'
    ' echo $((n+1)) > "$f"; set -- 233.1 236.4 219.7 204.2 198.6; shift $n; echo $1 > size'
)
# Code in prose that is wider than a phone.
WIDE = (
    "The page is computed with OFFSET, so an insert shifts every later page:\n\n```sql\n"
    "SELECT id, created_at, total, currency FROM orders WHERE (created_at, id) > (:at, :id)"
    " ORDER BY created_at, id LIMIT 51;\n```\n"
)
LOOK: list[dict[str, Any]] = [
    {"say": "I will look at how orders are queried now, before I decide on the cursor."},
    {"tool": "Read", "input": {"path": "orders.py"}, "result": ORDERS},
    {"tool": "Read", "input": {"path": "README.md"}, "result": "# Ledger"},
    {"tool": "Bash", "input": {"command": "make fuzz-orders"}, "result": "seed 1 ok\nseed 2 ok"},
    {"usage": {"input": 41000, "output": 2700, "cached": 37000, "turns": 19, "cost": 0.42}},
]
EXPORT = """## Plan
- [ ] Orders can be written as CSV, check: `test -f export.py`
- [ ] A page of the manual tells how
- [ ] The button is on the page, check: `grep -q export page.html`
## Contract
- Keep to the style of the files around."""
PARTIAL = {"verdict": "partial", "position": "A queue in PostgreSQL will do for a year."}
ROOMY = {"reasons": ["There are 40 jobs a second at most.", "One thing less to run at night."]}
FEATURES = [
    {"id": 1, "category": "api", "name": "Refunds", "description": "An order can be refunded"},
    {
        "id": 2,
        "category": "page",
        "name": "Dark mode",
        "description": "It follows the system",
    },
    {"id": 3, "category": "api", "name": "Coupons", "description": "A coupon is taken once"},
    {
        "id": 4,
        "category": "page",
        "name": "Wish list",
        "description": "It is kept over a login",
    },
    {"id": 5, "category": "api", "name": "Invoices", "description": "An invoice comes as PDF"},
]
SEEN = {"step": 1, "passed": True, "evidence": "The request answered 200, and its test passes."}
NOT_SEEN = {"step": 1, "passed": False, "evidence": "The answer is an empty file."}
ITEMS = ["Sketch the price list", "Index the audit log", "Write the notes", "Sketch the referrals"]
PARTS = (
    rule("(?s)Paginate.*", *LOOK, {"write": "orders.py", "content": BY_CURSOR},
         {"say": WIDE},
         {"write": "docs/orders.md", "content": "# Orders\n\nPages follow a cursor.\n"},
         {"result": "Orders are paginated by cursor; ?page= still works."})
    + rule("Cache the price", {"write": "cache.py", "content": "PRICES = {}\n"},
           {"result": "All tests pass."})
    + rule("Sketch", {"write": "model.md", "content": "# Loyalty\n"},
           {"result": "The model is sketched."})
    + rule("Index the audit", {"write": "audit.sql", "content": "CREATE INDEX at ON audit;\n"},
           {"result": "The index is there."})
    + rule("Replace the payment", {"say": "The old client repeats a POST without a key."},
           {"ask": "The old client repeats a POST without an idempotency key. Keep that for v1,"
                   " or drop it and raise the major version?"})
    + rule("Partition", {"say": "The copy has 41 million invoices. I will partition by month."},
           {"tool": "exec", "input": {"command": "psql -f migrations/0142_partition.sql"}},
           {"run": "sleep 600"})
    + rule("Document", {"write": "errors.md", "content": "# Errors\n"},
           {"say": "Every error has a code, a sentence and a hint."}, {"run": "sleep 600"})
    + "".join(
        rule(f"Implement this feature[^#]*## {one['name']}",
             {"write": f"{one['id']}.py", "content": "DONE = True\n"}, {"result": "Done."})
        for one in FEATURES)
    + rule("Mend it", {"append": "5.py", "content": "# again\n"}, {"result": "Mended."})
    + rule("Verify this feature[^#]*## Invoices", answer({"steps": [NOT_SEEN]}))
    + rule("Verify this feature", answer({"steps": [SEEN]}))
    + rule("You prepare work that", {"result": EXPORT})
    + rule("You review work", answer({"summary": "The plan is sound; the tests pass.",
                                      "issues": ["Quote fields that hold a comma."]}))
    + rule(r"milestone\nOrders", {"write": "export.py", "content": "import csv\n"},
           {"result": "Wrote export.py with its tests; decided for the dialect of RFC 4180."})
    + rule(r"milestone\nA page", {"say": "I am writing the page."}, {"run": "sleep 600"})
    + rule(r"You are side[\s\S]*Round 1", answer({**PARTIAL, **ROOMY, "verdict": "agree"}))
    + rule("You are side one", answer({**PARTIAL, **ROOMY}))
    + rule("You are side two", answer({**PARTIAL, "verdict": "disagree", "position":
           "A broker of its own is needed once webhooks are retried."}))
    + rule("You prepare", answer({"success_criteria": ["No colour literal outside tokens.css"]}))
    + rule("You conduct", answer({"parts": RELEASE}))
    + rule("You plan the work", answer(PLAN)) + rule("You review", answer(YES))
    + rule("PART-NAMES", {"write": "names.css", "content": ":root {}\n"}, {"result": "Named."})
    + rule("PART-", {"say": "Replacing 41 literal colours."}, {"run": "sleep 600"})
    + rule("Make the bundle", {"run": SERIES}, {"result": "Dropped the second date library."})
    + rule("Write the notes", {"write": "notes.md", "content": "# 2.0\n"}, {"result": "Written."})
    + rule("Shorten", {"append": "notes.md", "content": "Short.\n"}, {"result": "Shorter."})
    + rule("Race", {"write": "queue.py", "content": "LOCK = True\n"}, {"result": "Locked."})
)  # fmt: skip


def stage(kapelle: Instance, root: Path) -> dict[str, str]:
    """Submit it all and wait until it is as it should be; the ids by name."""
    cast(kapelle, rehearsal=PARTS)
    ledger = make_repository(root / "ledger", {"orders.py": ORDERS, "README.md": "# Ledger\n"})
    shop = make_repository(
        root / "shop-web",
        {"README.md": "# Shop\n", "size": "241.8\n", "features.json": json.dumps(FEATURES)},
    )
    ids: dict[str, str] = {}

    def task(key: str, prompt: str, where: Path = ledger, **spec: Any) -> str:
        ids[key] = kapelle.submit(prompt, where, title=prompt, project=where.name, **spec)
        return ids[key]

    task("orders", "Paginate the orders API", checks=["diff_not_empty", "test -f orders.py"])
    task("cache", "Cache the price list",
         checks=["diff_not_empty", "echo 'assert 1299 == 1399' >&2; exit 2"])  # fmt: skip
    task("sketch", "Sketch the loyalty model", shop)
    task("audit", "Index the audit log", checks=["test -f audit.sql"])
    for key in ("orders", "cache", "sketch", "audit"):
        kapelle.wait(ids[key])
    kapelle.post(f"/tasks/{ids['audit']}/merge")
    task("question", "Replace the payment client")
    kapelle.wait(ids["question"])
    task("blocked", "Refund webhooks", depends_on=[ids["question"]])
    loop = {"eval": "cat size", "direction": "minimize", "target": 180, "max_iterations": 5}
    race = {"prompt": "Race in the webhook queue", "count": 3, "eval": "echo 3"}
    steps = [{"prompt": "Write the notes"}, {"prompt": "Shorten them"}]

    def run(key: str, pattern: str, title: str, where: Path, **spec: Any) -> None:
        ids[key] = start(kapelle, pattern, where, title=title, project=where.name, **spec)

    run("loop", "loop", "Make the bundle smaller", shop, prompt="Make the bundle smaller", **loop)
    run("pipeline", "pipeline", "Release notes", shop, steps=steps)
    run("best", "best-of", "Race in the webhook queue", ledger, direction="minimize", **race)
    run("debate", "debate", "Which queue?", ledger, prompt="Which queue do we take?")
    lines = {"back": "api", "front": "page"}
    run("tracks", "tracks", "Features of the autumn", shop, tracks=lines, max_attempts=2)
    run("batch", "batch", "Small things", ledger, items=ITEMS, at_once=2)
    for key in ("loop", "pipeline", "best", "debate", "tracks", "batch"):
        rest(kapelle, ids[key])
    run("team", "team", "Dark mode for the storefront", shop, goal="Dark mode", verify=["true"])
    run("release", "orchestrate", "Release 2.0", shop, goal="Release 2.0", until=["true"])
    run("workflow", "workflow", "Export the orders", ledger, task="Export orders as CSV")
    task("partition", "Partition the invoices table", budget_usd=5, max_turns=1000)
    task("errors", "Document the REST errors")
    for key in ("partition", "errors"):
        kapelle.wait_for_status(ids[key], "running")
    await_running_task(kapelle, ids["team"], 4)
    await_running_task(kapelle, ids["release"], 3)
    await_running_task(kapelle, ids["workflow"], 5)
    nightly = {"prompt": "Sketch", "directory": str(shop), "agent": "rehearsal"}
    schedule = {"kind": "task", "cron": "0 3 * * *", "title": "Nightly update", "spec": nightly}
    kapelle.post("/schedules", schedule)
    learning = {"title": "Tests of the importer need Redis on port 6380, started by make redis",
                "content": "It is started once for the whole session; " * 6,
                "directory": str(ledger)}  # fmt: skip
    kapelle.post("/learnings", learning)
    return ids
