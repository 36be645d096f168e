export interface DiffLine {
  kind: 'a' | 'r' | 'h' | '';
  before: number | null;
  after: number | null;
  text: string;
  /** The part that differs from the line it replaces. */
  marked: [number, number] | null;
}

export interface DiffFile {
  path: string;
  about: string;
  lines: DiffLine[];
  added: number;
  removed: number;
}

/** The files of a patch in git's format. */
export function parsePatch(patch: string): DiffFile[] {
  const files: DiffFile[] = [];
  for (const part of patch.split(/^(?=diff --git )/m)) {
    if (part.startsWith('diff --git ')) files.push(parseFile(part));
  }
  return files;
}

function parseFile(part: string): DiffFile {
  const rows = part.replace(/\n$/, '').split('\n');
  const start = rows.findIndex((row) => row.startsWith('@@'));
  const head = start < 0 ? rows : rows.slice(0, start);
  const file: DiffFile = { path: pathOf(head), about: aboutOf(head), lines: [], added: 0, removed: 0 };
  let before = 0;
  let after = 0;
  for (const row of start < 0 ? [] : rows.slice(start)) {
    const hunk = /^@@ -(\d+)(?:,\d+)? \+(\d+)(?:,\d+)? @@/.exec(row);
    const text = row.slice(1);
    if (hunk) {
      before = Number(hunk[1]);
      after = Number(hunk[2]);
      file.lines.push({ kind: 'h', before: null, after: null, text: row, marked: null });
    } else if (row.startsWith('+')) {
      file.added += 1;
      file.lines.push({ kind: 'a', before: null, after: after++, text, marked: null });
    } else if (row.startsWith('-')) {
      file.removed += 1;
      file.lines.push({ kind: 'r', before: before++, after: null, text, marked: null });
    } else if (row.startsWith(' ')) {
      file.lines.push({ kind: '', before: before++, after: after++, text, marked: null });
    } else file.lines.push({ kind: 'h', before: null, after: null, text: row, marked: null });
  }
  markWords(file.lines);
  return file;
}

function pathOf(head: string[]): string {
  const named = (prefix: string) => head.find((row) => row.startsWith(prefix))?.slice(prefix.length);
  const after = named('+++ b/') ?? named('rename to ');
  return after ?? named('--- a/') ?? head[0]?.split(' b/').at(-1) ?? '';
}

function aboutOf(head: string[]): string {
  if (head.some((row) => row.startsWith('new file'))) return 'new file';
  if (head.some((row) => row.startsWith('deleted file'))) return 'deleted';
  if (head.some((row) => row.startsWith('rename from'))) return 'renamed';
  return head.some((row) => row.startsWith('Binary files')) ? 'binary' : '';
}

/** Marks what differs where as many lines were removed as added. */
function markWords(lines: DiffLine[]): void {
  for (let at = 0; at < lines.length; ) {
    const removed = run(lines, at, 'r');
    const added = run(lines, at + removed, 'a');
    if (removed > 0 && removed === added) {
      for (let n = 0; n < removed; n++) markPair(lines[at + n], lines[at + removed + n]);
    }
    at += Math.max(1, removed + added);
  }
}

function run(lines: DiffLine[], from: number, kind: string): number {
  let count = 0;
  while (lines[from + count]?.kind === kind) count += 1;
  return count;
}

function markPair(old: DiffLine | undefined, fresh: DiffLine | undefined): void {
  if (!old || !fresh) return;
  const shortest = Math.min(old.text.length, fresh.text.length);
  let head = 0;
  while (head < shortest && old.text[head] === fresh.text[head]) head += 1;
  let tail = 0;
  while (tail < shortest - head && old.text.at(-1 - tail) === fresh.text.at(-1 - tail)) tail += 1;
  if (head + tail === 0) return;
  old.marked = [head, old.text.length - tail];
  fresh.marked = [head, fresh.text.length - tail];
}

/** Lines side by side: what was removed beside what was added in its place. */
export function pairsOf(lines: DiffLine[]): [DiffLine | null, DiffLine | null][] {
  const pairs: [DiffLine | null, DiffLine | null][] = [];
  for (let at = 0; at < lines.length; ) {
    const removed = run(lines, at, 'r');
    const fresh = run(lines, at + removed, 'a');
    for (let row = 0; row < Math.max(removed, fresh); row++) {
      const old = row < removed ? lines[at + row] : null;
      pairs.push([old ?? null, (row < fresh ? lines[at + removed + row] : null) ?? null]);
    }
    const line = lines[at];
    if (removed + fresh === 0 && line) pairs.push([line, line]);
    at += Math.max(1, removed + fresh);
  }
  return pairs;
}

export interface LineCount {
  added: number;
  removed: number;
}

/** The numbers of lines that a patch adds and removes. */
export function countLines(patch: string): LineCount {
  const count = { added: 0, removed: 0 };
  let inside = false;
  for (const row of patch.split('\n')) {
    if (row.startsWith('diff --git ')) inside = false;
    else if (row.startsWith('@@')) inside = true;
    else if (inside && row.startsWith('+')) count.added += 1;
    else if (inside && row.startsWith('-')) count.removed += 1;
  }
  return count;
}

export const PlusMinus = ({ count }: { count: LineCount }) => (
  <span className="pm">
    <span className="plus">+{count.added.toLocaleString('en')}</span>{' '}
    <span className="minus">−{count.removed.toLocaleString('en')}</span>
  </span>
);
