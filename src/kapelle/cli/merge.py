"""The command merge: tasks and runs into their bases, one after another."""

from collections.abc import Iterator
from typing import Any

import typer

from kapelle.cli.command import CommandExit, CommandOutput, JsonFlag, flag, option
from kapelle.cli.format import delivery_words, fields, one_line
from kapelle.cli.ids import NewestId, NewestIds, path_of, work_id
from kapelle.cli.output import data, document, say, show_error, write
from kapelle.cli.values import listed
from kapelle.client.http import DaemonConnection
from kapelle.client.protocol import TRIES
from kapelle.domain.errors import InvalidInput, KapelleError


def merge(
    task_ids: NewestIds = None,
    into: str | None = option("BRANCH", "The branch to merge into; by default its base."),
    squash: bool = flag("As one commit."),
    rebase: bool = flag("The commits one by one onto the base."),
    message: str | None = option("TEXT", "The message of the commit.", "--message", "-m"),
    no_verify: bool = flag("Do not check the result if the base has moved."),
    preview: bool = flag("Only say how it would go."),
    undo: bool = flag("Undo the last merge instead."),
    force: bool = flag("Even if it is not completed."),
    as_json: JsonFlag = False,
) -> None:
    """Merge the branches of tasks and runs into their bases, in this order.

    If the base has moved since the checks of a task were made, they are made again on the result,
    aside; what fails is left out, and the others go on. --undo takes the last merge back: the
    branch moves back if nothing was built on the merge, else a commit reverts it.
    """
    if squash and rebase:
        raise InvalidInput("--squash and --rebase are two ways: use one of them.")
    if squash:
        style = "squash"
    elif rebase:
        style = "rebase"
    else:
        style = "merge"
    body = {"into": into, "force": force, "verify": not no_verify, "style": style}
    client = DaemonConnection()
    if task_ids:
        ids = listed(task_ids, "An id")
    else:
        ids = [work_id(client, None)]
    if undo:
        foreign = {"--into": into, "--preview": preview, "--force": force, "--squash": squash}
        foreign |= {"--rebase": rebase, "--no-verify": no_verify}
        for name in (name for name, value in foreign.items() if value):
            raise InvalidInput(f"--undo and {name} exclude each other: leave {name} out.")
        _undo_all(ids, message, as_json)
    elif preview:
        paths = [path_of(work_id(client, some_id), "merge") for some_id in ids]
        seen = [client.get(path, {"into": into}) for path in paths]
        lines = (line for one in seen for line in _preview(one))
        document(seen if len(ids) > 1 else seen[0]) if as_json else write(lines)
    else:
        _merge_all(ids, {**body, "message": message}, as_json)


def pr(
    some_id: NewestId = None,
    draft: bool = flag("As a draft; what failed can be nothing else."),
    ready: bool = flag("Make it ready for review, as a new one is."),
    show_only: bool = flag("Only show it, with what people said.", "--show"),
    force: bool = flag("Even with a secret in it."),
) -> CommandOutput:
    """Push what a task or a run did and open a pull request, or update it.

    Its description says what was asked, claimed and checked, and what it cost.
    """
    if draft and ready:
        raise InvalidInput("--draft and --ready exclude each other: use one of them.")
    client = DaemonConnection()
    path = path_of(work_id(client, some_id), "pr")
    # Without either, a pull request that is there stays as people have it.
    body = {"draft": draft if draft or ready else None, "force": force}
    if show_only:
        found = client.get(path)
    else:
        found = client.post(path, body, tries=TRIES)
    told = found["delivery"]
    yield CommandExit(found, 0 if told["status"] == "delivered" else 1)
    if told["url"]:
        data(told["url"])
    say(delivery_words(told))
    for one in found["comments"]:
        if one["path"]:
            where = f" ({one['path']})"
        else:
            where = ""
        say(f"{one['author']}{where}: {one_line(one['text'], 300)}")


def _merge_all(ids: list[str], body: dict[str, Any], as_json: bool) -> None:
    """Merge in this order; what is refused is told, and keeps none of the others out."""
    done = []
    codes = [0]
    for some_id in ids:
        try:
            done.append(_merge(some_id, body))
            if not as_json:
                _show(done[-1])
        except KapelleError as error:
            if len(ids) == 1:
                raise
            show_error(error, as_json=as_json)
            codes.append(error.exit_code)
    if as_json:
        document(done if len(ids) > 1 else done[0])
    if len(ids) > 1:
        say(f"{len(done)} of {len(ids)} are merged.")
    raise typer.Exit(max(codes))


def _undo_all(ids: list[str], message: str | None, as_json: bool) -> None:
    """Undo the merges, the last one first, and say how."""
    client = DaemonConnection()
    done = []
    for some_id in reversed(ids):
        path = path_of(work_id(client, some_id), "merge/undo")
        done.append(client.post(path, {"message": message}))
    if as_json:
        document(done if len(ids) > 1 else done[0])
        return
    for one in done:
        data(one["commit"])
        if one["how"] == "moved_back":
            how = "moved back"
        else:
            how = "a commit reverts the merge"
        updated = one["checkout_updated"]
        if updated:
            where = f"; the checkout {updated} was updated"
        else:
            where = ""
        say(f"Undid the merge of {one['id']} into {one['base']}: {how}{where}.")
        say(f"Its work stays on its branch: kapelle merge {one['id']} merges it again.")


def _merge(some_id: str, body: dict[str, Any]) -> Any:
    client = DaemonConnection()
    path = path_of(work_id(client, some_id), "merge")
    try:
        return client.merge(path, body, lambda phase: say(f"{some_id}: {phase}"))
    except KeyboardInterrupt:
        client.delete(path)
        say(f"The merge of {some_id} is given up.")
        raise


def _show(merged: dict[str, Any]) -> None:
    data(merged["commit"])
    if merged["already"]:
        say(f"{merged['base']} already contained {merged['id']}.")
        return
    updated = merged["checkout_updated"]
    checks = len(merged["checks"])
    if updated:
        where = f"; the checkout {updated} was updated"
    else:
        where = ""
    if checks:
        again = f"; {checks} checks passed on the result"
    else:
        again = ""
    if merged["signed"]:
        signed = ", signed"
    else:
        signed = ""
    say(f"Merged {merged['id']} into {merged['base']}{signed}{again}{where}.")
    if hooks := merged["hooks_not_run"]:
        say(f"Hooks were not run: {', '.join(hooks)}. Name what they do under checks.")
    if merged["identity_missing"]:
        say(
            "Git knows no name for you, so the merge is by Kapelle: "
            'git config --global user.name "…"; git config --global user.email …'
        )
    if merged["signature_missing"]:
        say(
            "Not signed: commit.gpgsign is set in this repository, and Kapelle follows your own "
            "configuration alone: git config --global commit.gpgsign true"
        )
    if merged["trust_dropped"]:
        say("It changed .kapelle, so the repository is not trusted any more: kapelle trust")


def _preview(seen: dict[str, Any]) -> Iterator[str]:
    """How a merge would go, line by line."""
    again = f"are made again on the result, for {seen['base']} has moved"
    facts = {
        "id": seen["id"],
        "base": f"{seen['base']}: {seen['ahead']} ahead of it, {seen['behind']} behind",
        "conflicts": one_line(", ".join(seen["conflicts"]) or "none"),
        "in the way": seen["dirty"] and f"uncommitted: {one_line(', '.join(seen['dirty']))}",
        "checks": again if seen["check_again"] else None,
        "problem": one_line(seen["problem"] or ""),
        "not verified": one_line(" ".join(seen.get("doubts") or ())),
        "merged": f"{seen['base']} contains it already" if seen["already"] else None,
    }
    return fields(facts)
