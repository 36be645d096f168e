import { keepPreviousData, useQuery } from '@tanstack/react-query';
import { type ReactNode, useEffect, useLayoutEffect, useRef, useState } from 'react';
import { api, ask, refusal, type Task } from '../../api/client';
import { bytes, visible } from '../../model/format';
import { Button, Choices, Empty, Problem } from '../../parts/controls';
import { Icon } from '../../parts/icon';
import { useKeys } from '../../shell/keys';

const PAGE = 262_144;
const LONGEST = 10_000;
const LINE_PX = 19;
/** So many lines are ready beyond what is seen. */
const BEYOND = 20;

const grouped = new Intl.NumberFormat('en');

type Stream = 'out' | 'err';

/** A piece of an output: its bytes, and where in them its lines begin and the last one ends. */
interface Piece {
  offset: number;
  data: Uint8Array;
  begins: Uint32Array;
  end: number;
  last: boolean;
}

async function read(
  task: string,
  attempt: number,
  stream: Stream,
  offset: number,
  signal: AbortSignal,
): Promise<Piece> {
  // The byte before tells whether a line begins at the offset.
  const from = Math.max(0, offset - 1);
  const query = `attempt=${attempt}&stream=${stream}&offset=${from}&limit=${PAGE}`;
  const response = await fetch(`/api/v1/tasks/${task}/output?${query}`, { signal });
  if (!response.ok) throw await refusal(response);
  return pieceOf(from, new Uint8Array(await response.arrayBuffer()));
}

/** Only whole lines, unless the output or the piece has none. */
function pieceOf(offset: number, data: Uint8Array): Piece {
  const last = data.length < PAGE;
  const start = offset > 0 ? data.indexOf(10) + 1 : 0;
  const end = last ? data.length : data.lastIndexOf(10) + 1 || data.length;
  let count = start < end ? 1 : 0;
  for (let at = data.indexOf(10, start); at >= 0 && at + 1 < end; at = data.indexOf(10, at + 1)) count++;
  const begins = new Uint32Array(count);
  for (let line = 0, at = start; line < count; line++, at = data.indexOf(10, at) + 1) begins[line] = at;
  return { offset, data, begins, end, last };
}

// biome-ignore lint/suspicious/noControlCharactersInRegex: colours begin with one
const COLOURS = /\u001b\[[0-9;]*m/g;
const decoder = new TextDecoder();
const encoder = new TextEncoder();

/** One line, made of its bytes when it is shown: a piece may have a hundred thousand. */
function lineOf({ data, begins, end }: Piece, line: number, mark: number, length: number): ReactNode {
  const begin = begins[line] ?? 0;
  const to = begins[line + 1] ?? end;
  // Of a long line that part is shown in which something was found.
  const from = mark > begin + LONGEST / 2 && mark < to ? mark - 200 : begin;
  const cut = Math.min(to, from + LONGEST);
  const text = (at: number, until: number) =>
    visible(decoder.decode(data.subarray(at, until)).replace(/\n$/, '').replace(COLOURS, ''));
  const [before, after] = [from > begin ? '… ' : '', cut < to ? ' …' : ''];
  if (mark < from || mark >= cut) return before + text(from, cut) + after;
  const found = Math.min(cut, mark + length);
  return (
    <>
      {before + text(from, mark)}
      <mark>{text(mark, found)}</mark>
      {text(found, cut) + after}
    </>
  );
}

/** The line of a piece that holds a byte of it. */
function lineWith({ begins, end }: Piece, byte: number): number {
  return byte < 0 || byte >= end ? -1 : begins.findLastIndex((begin) => begin <= byte);
}

const MOST_HITS = 1000;

/** The position of a match, in bytes. */
interface Mark {
  at: number;
  length: number;
}

/** A text that is looked for in all of the output, by the daemon. */
function Find(props: {
  task: string;
  attempt: number;
  stream: Stream;
  show: (hit: number, length: number) => void;
}) {
  const { task, attempt, stream, show } = props;
  const [given] = useState(() => new URLSearchParams(location.search).get('find') ?? '');
  const [typed, setTyped] = useState(given);
  const [wanted, want] = useState(given);
  const [at, setAt] = useState(0);
  const field = useRef<HTMLInputElement>(null);
  useKeys({ f: () => field.current?.focus() });
  const found = useQuery({
    queryKey: ['find', task, attempt, stream, wanted],
    queryFn: () =>
      ask(
        api.GET('/api/v1/tasks/{task_id}/output/find', {
          params: {
            path: { task_id: task },
            query: { query: wanted, attempt: String(attempt), stream, limit: MOST_HITS },
          },
        }),
      ),
    enabled: wanted !== '',
    gcTime: 0,
  });
  const offsets = found.data?.offsets ?? [];
  const { length } = encoder.encode(wanted);
  const step = (by: number) => {
    const next = (at + by + offsets.length) % offsets.length;
    const hit = offsets[next];
    setAt(next);
    if (hit !== undefined) show(hit, length);
  };
  useEffect(() => {
    setAt(0);
    const [hit] = found.data?.offsets ?? [];
    if (hit !== undefined) show(hit, length);
  }, [found.data]);
  const count = found.data?.next_offset ? `${offsets.length}+` : `${offsets.length}`;
  return (
    <div className="rawfoot seek">
      <span className="searchbox grow">
        <Icon name="search" />
        <input
          ref={field}
          aria-label="Find in the output"
          placeholder="Find"
          value={typed}
          onChange={(event) => setTyped(event.target.value)}
          onKeyDown={(event) => {
            if (event.key !== 'Enter') return;
            if (typed !== wanted) want(typed);
            else if (offsets.length > 0) step(event.shiftKey ? -1 : 1);
          }}
        />
        <kbd>f</kbd>
      </span>
      <span className="faint hits" role="status">
        {found.data && (offsets.length > 0 ? `${at + 1} of ${count}` : 'No matches')}
      </span>
      <Button small look="quiet" disabled={offsets.length === 0} onClick={() => step(-1)}>
        Previous
      </Button>
      <Button small look="quiet" disabled={offsets.length === 0} onClick={() => step(1)}>
        Next
      </Button>
      <Problem error={found.error} />
    </div>
  );
}

/** The raw bytes that an attempt printed, read a piece at a time. */
export function Output({ task }: { task: Task }) {
  const last = task.attempts.at(-1);
  const [number, choose] = useState(last?.number ?? 1);
  const [stream, setStream] = useState<Stream>('out');
  const [offset, setOffset] = useState(0);
  const [mark, setMark] = useState<Mark | null>(null);
  const attempt = task.attempts.find((one) => one.number === number);
  const isRunning = attempt?.status === 'running';
  const chunk = useQuery({
    queryKey: ['output', task.id, number, stream, offset],
    queryFn: ({ signal }) => read(task.id, number, stream, offset, signal),
    refetchInterval: isRunning ? 1000 : false,
    staleTime: isRunning ? 0 : Number.POSITIVE_INFINITY,
    // What was scrolled past is read again, and not kept.
    gcTime: 0,
    placeholderData: keepPreviousData,
  });
  const go = (to: number) => {
    setMark(null);
    setOffset(Math.max(0, Math.floor(to)));
  };
  const end = () => go((attempt?.output_bytes ?? 0) - PAGE / 2);
  useKeys({ G: end });
  if (!attempt) return <Empty title="No output yet" />;
  const piece = chunk.data;
  const total = stream === 'out' ? attempt.output_bytes : (piece?.data.length ?? 0);
  const show = (hit: number, length: number) => {
    const held = piece && hit >= first && hit < piece.offset + piece.end;
    if (!held) go(hit - PAGE / 2);
    setMark({ at: hit, length });
  };
  const first = piece ? piece.offset + (piece.begins[0] ?? 0) : 0;
  const on = piece && !piece.last ? () => go(piece.offset + piece.end) : undefined;
  const back = first > 0 ? () => go(first - PAGE + 1) : undefined;
  return (
    <>
      <div className="tbar">
        <Choices
          label="Attempt"
          value={String(number)}
          choose={(value) => {
            choose(Number(value));
            go(0);
          }}
          of={task.attempts.map((one) => ({ value: String(one.number), label: `Attempt ${one.number}` }))}
        />
        <Choices
          label="Stream"
          value={stream}
          choose={(value) => {
            setStream(value);
            go(0);
          }}
          of={[
            { value: 'out', label: 'out' },
            { value: 'err', label: 'err' },
          ]}
        />
      </div>
      <Problem error={chunk.error} />
      <div className="raw">
        <Find key={`${number} ${stream}`} task={task.id} attempt={number} stream={stream} show={show} />
        {piece && <Raw piece={piece} mark={mark} back={back} on={on} />}
        <div className="rawfoot">
          <span>
            byte {grouped.format(first)} {stream === 'out' && `of ${grouped.format(total)}`}
          </span>
          <span className="faint">{bytes(piece?.data.length ?? 0)} read, nothing else is in memory</span>
          {total > PAGE && (
            <input
              type="range"
              className="grow"
              aria-label="Position in the output"
              max={Math.max(0, total - PAGE / 2)}
              step={PAGE / 4}
              value={offset}
              onChange={(event) => go(Number(event.target.value))}
            />
          )}
          <span className="grow" />
          <Button small look="quiet" disabled={!back} onClick={() => go(0)}>
            Start
          </Button>
          <Button small look="quiet" disabled={!back} onClick={back}>
            Back
          </Button>
          <Button small look="quiet" disabled={!on} onClick={on}>
            On
          </Button>
          <Button small look="quiet" hotkey="G" disabled={!on} onClick={end}>
            End
          </Button>
        </div>
      </div>
    </>
  );
}

/** One piece; whoever scrolls beyond an end of it goes on in the next one. */
function Raw(props: { piece: Piece; mark: Mark | null; back?: () => void; on?: () => void }) {
  const { piece, mark, back, on } = props;
  const box = useRef<HTMLDivElement>(null);
  const shown = useRef(piece.offset);
  const [top, setTop] = useState(0);
  useLayoutEffect(() => {
    if (!box.current || shown.current === piece.offset) return;
    const backwards = piece.offset < shown.current;
    shown.current = piece.offset;
    box.current.scrollTop = backwards ? box.current.scrollHeight - box.current.clientHeight - LINE_PX : 1;
    setTop(box.current.scrollTop);
  }, [piece.offset]);
  const marked = (mark?.at ?? -1) - piece.offset;
  const markedLine = lineWith(piece, marked);
  useLayoutEffect(() => {
    if (!box.current || markedLine < 0) return;
    box.current.scrollTop = Math.max(1, (markedLine - 5) * LINE_PX);
    setTop(box.current.scrollTop);
  }, [piece.offset, mark]);
  const scrolled = () => {
    if (!box.current) return;
    const { scrollTop, scrollHeight, clientHeight } = box.current;
    setTop(scrollTop);
    if (scrollTop + clientHeight >= scrollHeight - 1) on?.();
    else if (scrollTop === 0) back?.();
  };
  const count = piece.begins.length;
  const first = Math.max(0, Math.floor(top / LINE_PX) - BEYOND);
  const seen = Math.ceil((box.current?.clientHeight ?? 640) / LINE_PX) + 2 * BEYOND;
  const lines = Array.from({ length: Math.max(0, Math.min(count - first, seen)) }, (_, line) => first + line);
  if (count === 0) return <p className="p-4 faint">Empty.</p>;
  return (
    <div
      ref={box}
      onScroll={scrolled}
      className="lines rawbox"
      // biome-ignore lint/a11y/noNoninteractiveTabindex: what scrolls must be reached by keys
      tabIndex={0}
      role="log"
      aria-live="off"
      aria-label="Output"
    >
      <div className="rawspace" style={{ height: count * LINE_PX }}>
        {lines.map((line) => (
          // The element of a line that is gone is taken for one that comes.
          <div
            key={line % seen}
            className={`x ${line === markedLine ? 'found' : ''}`}
            style={{ transform: `translateY(${line * LINE_PX}px)` }}
          >
            <i>{grouped.format(piece.offset + (piece.begins[line] ?? 0))}</i>
            <span>{lineOf(piece, line, marked, mark?.length ?? 0)}</span>
          </div>
        ))}
      </div>
    </div>
  );
}
