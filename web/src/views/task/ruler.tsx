import { type PointerEvent, useEffect, useMemo, useRef, useState } from 'react';
import { type Block, isBad } from './blocks';

const BARS = 110;
const EDITS = /^(edit|write|multiedit|notebookedit|apply_patch|str_replace|patch|create)/i;

function markOf(block: Block): string | null {
  if (isBad(block)) return 'm-bad';
  if (block.kind === 'checks') return block.running ? null : 'm-ok';
  if (block.kind === 'note' && block.about === 'question') return 'm-you';
  return block.kind === 'tools' && EDITS.test(block.uses[0]?.name ?? '') ? 'm-edit' : null;
}

function weightOf(block: Block): number {
  if (block.kind === 'tools')
    return block.uses.reduce((sum, use) => sum + 40 + (use.result?.text?.length ?? 0), 0);
  return block.kind === 'text' || block.kind === 'result' ? block.text.length : 80;
}

const SELDOM_MS = 1000;

/** A value that changes with every frame, as it is now and then. */
function useSeldom<T>(value: T): T {
  const [shown, show] = useState(value);
  const latest = useRef(value);
  latest.current = value;
  useEffect(() => {
    const timer = setInterval(() => show(latest.current), SELDOM_MS);
    return () => clearInterval(timer);
  }, []);
  return shown;
}

interface Props {
  blocks: Block[];
  /** The start of each block, and of the first one. */
  places: { start: number }[];
  top: number;
  total: number;
  /** The part that is in the window. */
  from: number;
  to: number;
  go: (part: number) => void;
}

/** All that was read in the height of the window: how much, what matters, and where one is. */
export function Ruler({ blocks, places, top, total, from, to, go }: Props) {
  const shown = useSeldom(blocks);
  const drawn = useMemo(() => {
    const weights = new Array<number>(BARS).fill(0);
    const marks = new Map<number, string>();
    for (const [index, block] of shown.entries()) {
      const begin = ((places[index]?.start ?? top) - top) / Math.max(1, total);
      const at = Math.max(0, Math.min(BARS - 1, Math.floor(BARS * begin)));
      weights[at] = (weights[at] ?? 0) + weightOf(block);
      const mark = markOf(block);
      if (mark && marks.get(at) !== 'm-bad') marks.set(at, mark);
    }
    const most = Math.log1p(Math.max(...weights));
    return (
      <>
        {weights.map((weight, at) => (
          <rect
            key={at}
            className="den"
            x="0"
            y={at}
            width={weight ? 4 + (18 * Math.log1p(weight)) / most : 0}
            height=".7"
          />
        ))}
        {[...marks].map(([at, mark]) => (
          <rect key={at} className={mark} x="0" y={at} width="26" height="1" />
        ))}
      </>
    );
  }, [shown]);
  const reach = (event: PointerEvent<SVGSVGElement>) => {
    const box = event.currentTarget.getBoundingClientRect();
    if (event.buttons === 1) go((event.clientY - box.top) / box.height);
  };
  const y = (BARS * from) / total;
  return (
    <div className="ruler">
      <svg
        aria-hidden="true"
        viewBox={`-2 0 30 ${BARS}`}
        preserveAspectRatio="none"
        onPointerDown={(event) => {
          event.currentTarget.setPointerCapture(event.pointerId);
          reach(event);
        }}
        onPointerMove={reach}
      >
        <rect x="-2" y="0" width="30" height={BARS} fill="transparent" />
        {drawn}
        <rect className="win" x="-2" y={y} width="30" height={Math.max(2, (BARS * (to - from)) / total)} />
      </svg>
    </div>
  );
}
