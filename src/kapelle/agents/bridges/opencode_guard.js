// Asks, as a plugin of opencode, whether a tool may write what it is about to write: by the same
// program that other agents run as a hook, which KAPELLE_GUARD names.
import { spawnSync } from "node:child_process"

const WRITING = ["write", "edit", "multiedit", "patch", "apply_patch", "bash"]

export const Guard = async ({ directory }) => ({
  "tool.execute.before": async ({ tool }, { args }) => {
    if (!WRITING.includes(tool)) return
    const input = JSON.stringify({ tool_input: args, cwd: directory })
    const asked = spawnSync("sh", ["-c", process.env.KAPELLE_GUARD], { input, encoding: "utf8" })
    if (asked.status !== 0) throw new Error("Kapelle cannot tell whether this is locked: refused.")
    const answer = asked.stdout && JSON.parse(asked.stdout).hookSpecificOutput
    if (answer) throw new Error(answer.permissionDecisionReason)
  },
})
