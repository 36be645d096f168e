import { keepPreviousData, useQuery } from '@tanstack/react-query';
import { useVirtualizer } from '@tanstack/react-virtual';
import { useLayoutEffect, useMemo, useRef, useState } from 'react';
import { refusal, type Task } from '../../api/client';
import { bytes, visible } from '../../model/format';
import { Button, Choices, Empty, Problem } from '../../parts/controls';

const PAGE = 262_144;
const LONGEST = 10_000;
const LINE_PX = 19;

type Stream = 'out' | 'err';

interface Chunk {
  offset: number;
  data: Uint8Array;
}

async function read(
  task: string,
  attempt: number,
  stream: Stream,
  offset: number,
  signal: AbortSignal,
): Promise<Chunk> {
  const query = `attempt=${attempt}&stream=${stream}&offset=${offset}&limit=${PAGE}`;
  const response = await fetch(`/api/v1/tasks/${task}/output?${query}`, { signal });
  if (!response.ok) throw await refusal(response);
  return { offset, data: new Uint8Array(await response.arrayBuffer()) };
}

// biome-ignore lint/suspicious/noControlCharactersInRegex: colours begin with one
const COLOURS = /\u001b\[[0-9;]*m/g;

/** The lines of a chunk, each with its place in the whole output. */
function linesOf({ offset, data }: Chunk): [number, string][] {
  const lines: [number, string][] = [];
  const decoder = new TextDecoder();
  for (let from = 0; from < data.length; ) {
    const end = data.indexOf(10, from);
    const to = end < 0 ? data.length : end;
    const text = decoder.decode(data.subarray(from, Math.min(to, from + LONGEST)));
    lines.push([offset + from, visible(text.replace(COLOURS, '')) + (to - from > LONGEST ? ' …' : '')]);
    from = to + 1;
  }
  return lines;
}

/** The raw bytes that an attempt printed, read a piece at a time. */
export function Output({ task }: { task: Task }) {
  const last = task.attempts.at(-1);
  const [number, choose] = useState(last?.number ?? 1);
  const [stream, setStream] = useState<Stream>('out');
  const [offset, setOffset] = useState(0);
  const attempt = task.attempts.find((one) => one.number === number);
  const isRunning = attempt?.status === 'running';
  const chunk = useQuery({
    queryKey: ['output', task.id, number, stream, offset],
    queryFn: ({ signal }) => read(task.id, number, stream, offset, signal),
    refetchInterval: isRunning ? 1000 : false,
    staleTime: isRunning ? 0 : Number.POSITIVE_INFINITY,
    gcTime: 2_000,
    placeholderData: keepPreviousData,
  });
  if (!attempt) return <Empty title="Nothing has been printed yet" />;
  const total = stream === 'out' ? attempt.output_bytes : (chunk.data?.data.length ?? 0);
  const go = (to: number) => setOffset(Math.max(0, to));
  const held = chunk.data?.data;
  const atEnd = (held?.length ?? 0) < PAGE;
  // A line that the end of a piece cuts is told by the next one.
  const next = offset + ((held && held.lastIndexOf(10) + 1) || PAGE);
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
        {chunk.data && (
          <Raw
            chunk={chunk.data}
            before={offset > 0 ? () => go(offset - PAGE) : undefined}
            after={atEnd ? undefined : () => go(next)}
          />
        )}
        <div className="rawfoot">
          <span>
            byte {offset.toLocaleString('en')} {stream === 'out' && `of ${total.toLocaleString('en')}`}
          </span>
          <span className="faint">{bytes(chunk.data?.data.length ?? 0)} read, nothing else is in memory</span>
          <span className="grow" />
          <Button small look="quiet" disabled={offset === 0} onClick={() => go(0)}>
            Start
          </Button>
          <Button small look="quiet" disabled={offset === 0} onClick={() => go(offset - PAGE)}>
            Back
          </Button>
          <Button small look="quiet" disabled={atEnd} onClick={() => go(next)}>
            On
          </Button>
          <Button small look="quiet" disabled={atEnd} onClick={() => go(total - PAGE / 2)}>
            End
          </Button>
        </div>
      </div>
    </>
  );
}

/** One piece; whoever scrolls beyond an end of it goes on in the next one. */
function Raw(props: { chunk: Chunk; before?: () => void; after?: () => void }) {
  const { chunk, before, after } = props;
  const lines = useMemo(() => linesOf(chunk), [chunk]);
  const box = useRef<HTMLDivElement>(null);
  const shown = useRef(chunk.offset);
  useLayoutEffect(() => {
    if (!box.current || shown.current === chunk.offset) return;
    const back = chunk.offset < shown.current;
    shown.current = chunk.offset;
    box.current.scrollTop = back ? box.current.scrollHeight - box.current.clientHeight - LINE_PX : 1;
  }, [chunk.offset]);
  const scrolled = () => {
    if (!box.current) return;
    const { scrollTop, scrollHeight, clientHeight } = box.current;
    if (scrollTop + clientHeight >= scrollHeight - 1) after?.();
    else if (scrollTop === 0) before?.();
  };
  const rows = useVirtualizer({
    count: lines.length,
    getScrollElement: () => box.current,
    estimateSize: () => LINE_PX,
    overscan: 20,
  });
  if (lines.length === 0) return <p className="p-4 faint">Nothing here.</p>;
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
      <div className="rawspace" style={{ height: rows.getTotalSize() }}>
        {rows.getVirtualItems().map(({ index, start }) => (
          <div key={index} className="x" style={{ transform: `translateY(${start}px)` }}>
            <i>{lines[index]?.[0].toLocaleString('en')}</i>
            <span>{lines[index]?.[1]}</span>
          </div>
        ))}
      </div>
    </div>
  );
}
