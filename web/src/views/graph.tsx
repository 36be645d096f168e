import { type CSSProperties, type ReactNode, useMemo } from 'react';
import { arrange, type Item, type Place } from '../model/layout';
import type { State } from '../model/work';
import { useWidth } from '../parts/chart';
import { Glyph } from '../parts/glyph';
import { Said } from '../parts/text';
import { WorkTo } from './work_link';

/** A node of a graph. */
export interface Node extends Omit<Item, 'inside'> {
  title: string;
  about: string;
  state: State;
  /** The id of the task or run to which it leads. */
  work?: string | null;
  inside?: Node[];
  /** Shown instead of title and state. */
  as?: ReactNode;
}

const LOOKS: Partial<Record<State, string>> = {
  run: 'run',
  bad: 'bad',
  lost: 'bad',
  you: 'you',
  blocked: 'todo',
  queued: 'todo',
  todo: 'todo',
  none: 'todo',
};

interface Props {
  nodes: Node[];
  label: string;
  widest?: number;
}

const [GAP, LEAST, LEAST_IN_ROW] = [12, 140, 190];

const items = (nodes: Node[]): Item[] => nodes.map((node) => ({ ...node, inside: items(node.inside ?? []) }));

const flat = (nodes: Node[]): Node[] => nodes.flatMap((node) => [node, ...flat(node.inside ?? [])]);

/** Things with a line from each to what comes after it; on a phone a list in that order. */
export function Graph({ nodes, label, widest = 216 }: Props) {
  const [box, available] = useWidth(320);
  const layout = useMemo(() => {
    const all = items(nodes);
    const fitting = (width: number) => Math.max(1, Math.floor((available + GAP) / (width + GAP)));
    const usual = Math.min(widest, Math.floor((available + GAP) / fitting(LEAST_IN_ROW)) - GAP);
    // Narrower until everything is in sight, as far as titles can be read.
    for (let width = usual; ; width -= 15) {
      const found = arrange(all, {
        gap: GAP,
        bend: 36,
        height: 54,
        columns: fitting(width),
        unit: width + GAP,
      });
      if (found.width <= available || width - 15 < LEAST) return found;
    }
  }, [nodes, available, widest]);
  const known = new Map(flat(nodes).map((node) => [node.id, node]));
  const done = (id: string) => ['ok', 'merged', 'said'].includes(known.get(id)?.state ?? '');
  return (
    <figure className="dag" ref={box} aria-label={label}>
      <div className="plane" style={{ width: layout.width, height: layout.height }}>
        <svg className="edges" aria-hidden="true">
          {layout.lines.map(({ from, to, path }) => (
            <path key={`${from} ${to}`} className={done(from) ? 'ok' : ''} d={path} />
          ))}
        </svg>
        {[...layout.places].map(([id, place]) => {
          const node = known.get(id);
          return node && <Shown key={id} node={node} place={place} />;
        })}
      </div>
    </figure>
  );
}

function Shown({ node, place }: { node: Node; place: Place }) {
  const { left, top, width, height, depth } = place;
  const style = { left, top, width, height, '--d': depth } as CSSProperties;
  if (node.as) {
    return (
      <div className="asis" style={style}>
        {node.as}
      </div>
    );
  }
  const shape = node.inside?.length ? 'node holds' : 'node';
  return (
    <WorkTo id={node.work} className={`${shape} ${LOOKS[node.state] ?? ''}`} style={style}>
      <span className="in">
        <span className="t">
          <Glyph state={node.state} />
          <Said>{node.title}</Said>
        </span>
        <span className="d cut">
          <Said>{node.about}</Said>
        </span>
      </span>
    </WorkTo>
  );
}
