import type { CheckResult } from '../../api/client';
import type { Line } from '../../api/transcript';

export interface ToolUse {
  name: string;
  input: Line;
  result: Line | null;
}

/** One block of a conversation. */
export type Block =
  | { kind: 'attempt'; key: string; number: number; agent: string; after: string | null }
  | { kind: 'person'; key: string; line: Line }
  | { kind: 'text'; key: string; text: string }
  | { kind: 'tools'; key: string; uses: ToolUse[] }
  | { kind: 'checks'; key: string; checks: CheckResult[]; running: string | null }
  | { kind: 'result'; key: string; text: string; failed: boolean }
  | { kind: 'note'; key: string; text: string; about: string; bad: boolean };

const NOTES = new Set(['error', 'notice', 'plan', 'question']);
const EVERYTHING = new Set(['stderr', 'model', 'session']);

/** Tells whether a block reports a failure. */
export const isBad = (block: Block): boolean =>
  (block.kind === 'note' && block.bad) ||
  (block.kind === 'result' && block.failed) ||
  (block.kind === 'checks' && block.checks.some((check) => !check.passed));

/** The lines of a transcript, joined to what belongs together. */
export function blocksOf(lines: Line[], everything: boolean): Block[] {
  const blocks: Block[] = [];
  for (const line of lines) add(blocks, line, everything);
  return blocks;
}

function add(blocks: Block[], line: Line, everything: boolean): void {
  const last = blocks.at(-1);
  const key = `${line.place} ${line.kind}`;
  switch (line.kind) {
    case 'attempt':
      blocks.push({
        kind: 'attempt',
        key,
        number: line.number ?? 1,
        agent: line.agent ?? '',
        after: line.after ?? null,
      });
      return;
    case 'person':
      blocks.push({ kind: 'person', key, line });
      return;
    case 'text': {
      const joint = line.data?.delta ? '' : '\n';
      if (last?.kind === 'text') last.text += joint + (line.text ?? '');
      else blocks.push({ kind: 'text', key, text: line.text ?? '' });
      return;
    }
    case 'tool_call': {
      const use = { name: line.name ?? 'tool', input: line, result: null };
      if (last?.kind === 'tools' && last.uses[0]?.name === use.name) last.uses.push(use);
      else blocks.push({ kind: 'tools', key, uses: [use] });
      return;
    }
    case 'tool_result': {
      const open = last?.kind === 'tools' ? last.uses.find((use) => use.result === null) : undefined;
      if (open) open.result = line;
      return;
    }
    case 'checking':
    case 'check':
      addCheck(blocks, last, line, key);
      return;
    case 'result':
      blocks.push({ kind: 'result', key, text: line.text ?? '', failed: line.data?.is_error === true });
      return;
    default:
      if (NOTES.has(line.kind) || (everything && EVERYTHING.has(line.kind))) {
        blocks.push({
          kind: 'note',
          key,
          text: line.text ?? '',
          about: line.kind,
          bad: line.kind === 'error',
        });
      }
  }
}

function addCheck(blocks: Block[], last: Block | undefined, line: Line, key: string): void {
  const block: Block = last?.kind === 'checks' ? last : { kind: 'checks', key, checks: [], running: null };
  if (block !== last) blocks.push(block);
  if (block.kind !== 'checks') return;
  if (line.kind === 'checking') block.running = line.name ?? '';
  else {
    block.running = null;
    block.checks.push(line as unknown as CheckResult);
  }
}
