// A plugin of opencode that asks the daemon, before a tool writes, whether another agent holds the
// files. KAPELLE_GUARD is the command that other agents run as a hook.
import { spawnSync } from "node:child_process"

const WRITING = ["write", "edit", "multiedit", "patch", "apply_patch", "bash"]

export const Guard = async ({ directory }) => ({
  "tool.execute.before": async ({ tool }, { args }) => {
    if (!WRITING.includes(tool)) return
    const input = JSON.stringify({ tool_input: args, cwd: directory })
    const guard = spawnSync("sh", ["-c", process.env.KAPELLE_GUARD], { input, encoding: "utf8" })
    if (guard.status !== 0) throw new Error("Refused, because Kapelle cannot check the locks.")
    const refusal = guard.stdout && JSON.parse(guard.stdout).hookSpecificOutput
    if (refusal) throw new Error(refusal.permissionDecisionReason)
  },
})
