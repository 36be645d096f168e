/** Something to place: after what it comes, and what is inside it. */
export interface Item {
  id: string;
  after: string[];
  inside: Item[];
  height?: number;
  width?: number;
}

export interface Place {
  left: number;
  top: number;
  width: number;
  height: number;
  depth: number;
}

export interface Line {
  from: string;
  to: string;
  path: string;
}

export interface Layout {
  width: number;
  height: number;
  /** In the order of reading: what is inside something follows it. */
  places: Map<string, Place>;
  lines: Line[];
}

export interface Measure {
  /** The width of one item and the space behind it. */
  unit: number;
  gap: number;
  /** The space between columns, in which lines are drawn. */
  bend: number;
  height: number;
  /** The maximum number of items side by side. */
  columns: number;
}

const [HEAD, PAD] = [36, 10];

/** Items with lines among them by layers, each behind what it comes after; the others side by side. */
export function arrange(items: Item[], measure: Measure, depth = 0): Layout {
  const edges = amongSiblings(items);
  const blocks = components(items, edges).map((group) =>
    group.length > 1 ? layered(group, edges, measure, depth) : alone(group[0] as Item, measure, depth),
  );
  return packed(blocks, measure);
}

/** For each item those of its neighbours after which it, or something inside it, comes. */
function amongSiblings(items: Item[]): Map<string, Set<string>> {
  const owner = new Map<string, string>();
  const own = (item: Item, top: string) => {
    owner.set(item.id, top);
    for (const child of item.inside) own(child, top);
  };
  for (const item of items) own(item, item.id);
  const edges = new Map<string, Set<string>>(items.map((item) => [item.id, new Set()]));
  const note = (item: Item) => {
    const to = owner.get(item.id) as string;
    for (const id of item.after) {
      const from = owner.get(id);
      if (from && from !== to) edges.get(to)?.add(from);
    }
    for (const child of item.inside) note(child);
  };
  for (const item of items) note(item);
  return edges;
}

/** Items that lines lead to from one another, in groups. */
function components(items: Item[], edges: Map<string, Set<string>>): Item[][] {
  const root = new Map(items.map((item) => [item.id, item.id]));
  const find = (id: string): string => (root.get(id) === id ? id : find(root.get(id) as string));
  for (const [to, froms] of edges) for (const from of froms) root.set(find(from), find(to));
  const groups = new Map<string, Item[]>();
  for (const item of items) groups.set(find(item.id), [...(groups.get(find(item.id)) ?? []), item]);
  return [...groups.values()].sort((a, b) => Number(b.length > 1) - Number(a.length > 1));
}

/** One item with what is inside it. */
function alone(item: Item, measure: Measure, depth: number): Layout {
  if (item.inside.length === 0) {
    const [width, height] = [item.width ?? measure.unit - measure.gap, item.height ?? measure.height];
    const place = { left: 0, top: 0, width, height, depth };
    return { width, height, places: new Map([[item.id, place]]), lines: [] };
  }
  const span = Math.min(measure.columns, Math.max(1, Math.ceil(Math.sqrt(item.inside.length))));
  const narrower = { ...measure, unit: measure.unit - (2 * PAD) / span, columns: span };
  const inner = arrange(item.inside, narrower, depth + 1);
  const width = Math.max(span * measure.unit - measure.gap, inner.width + 2 * PAD);
  const height = HEAD + inner.height + PAD;
  const places = new Map([[item.id, { left: 0, top: 0, width, height, depth }]]);
  return { width, height, ...moved(inner, PAD, HEAD, places) };
}

/** Blocks in as little height as they need, each where there is most room. */
function packed(blocks: Layout[], { unit, gap, columns }: Measure): Layout {
  const filled = new Array<number>(columns).fill(0);
  const all: Layout = { width: 0, height: 0, places: new Map(), lines: [] };
  for (const block of blocks) {
    const span = Math.min(columns, Math.ceil((block.width + gap) / unit));
    const under = (column: number) => Math.max(...filled.slice(column, column + span));
    const starts = Array.from({ length: columns - span + 1 }, (_, column) => column);
    const column = starts.reduce((best, other) => (under(other) < under(best) ? other : best), 0);
    const [left, top] = [column * unit, under(column)];
    filled.fill(top + block.height + gap, column, column + span);
    all.lines.push(...moved(block, left, top, all.places).lines);
    all.width = Math.max(all.width, left + block.width);
    all.height = Math.max(all.height, top + block.height);
  }
  return all;
}

/** A layout elsewhere, its places added to others. */
function moved(layout: Layout, left: number, top: number, places: Map<string, Place>) {
  for (const [id, place] of layout.places)
    places.set(id, { ...place, left: place.left + left, top: place.top + top });
  const lines = layout.lines.map((line) => ({ ...line, path: shifted(line.path, left, top) }));
  return { places, lines };
}

const shifted = (path: string, left: number, top: number): string =>
  path.replace(/(-?[\d.]+) (-?[\d.]+)/g, (_, x, y) => `${Number(x) + left} ${Number(y) + top}`);

/** A place in a column: an item, or the room that a line needs to pass. */
interface Slot {
  id: string;
  block: Layout | null;
  before: string[];
  at: number;
}

const PASS = 14;

function layered(group: Item[], edges: Map<string, Set<string>>, measure: Measure, depth: number): Layout {
  const layers = depths(group, edges);
  const columns: Slot[][] = [];
  const put = (column: number, slot: Slot) => {
    columns[column] = [...(columns[column] ?? []), slot];
  };
  const routes: { from: string; to: string; over: string[] }[] = [];
  for (const item of group) {
    const column = layers.get(item.id) ?? 0;
    const before: string[] = [];
    for (const from of edges.get(item.id) ?? []) {
      const over: string[] = [];
      for (let between = (layers.get(from) ?? 0) + 1; between < column; between++) {
        const id = `${from} ${item.id} ${between}`;
        put(between, { id, block: null, before: [over.at(-1) ?? from], at: 0 });
        over.push(id);
      }
      before.push(over.at(-1) ?? from);
      routes.push({ from, to: item.id, over });
    }
    put(column, { id: item.id, block: alone(item, measure, depth), before, at: 0 });
  }
  untangle(columns);
  return drawn(columns, routes, measure);
}

/** The distance of each item from the first ones. */
function depths(group: Item[], edges: Map<string, Set<string>>): Map<string, number> {
  const known = new Map<string, number>();
  const of = (id: string, seen: Set<string>): number => {
    const found = known.get(id);
    if (found !== undefined || seen.has(id)) return found ?? 0;
    const before = [...(edges.get(id) ?? [])].map((other) => of(other, new Set([...seen, id])));
    known.set(id, Math.max(-1, ...before) + 1);
    return known.get(id) as number;
  };
  for (const item of group) of(item.id, new Set());
  return known;
}

const SWEEPS = 4;

/** Sort each column by where its neighbours in the next one are, so that fewer lines cross. */
function untangle(columns: Slot[][]): void {
  const number = (column: Slot[]) => {
    for (const [at, slot] of column.entries()) slot.at = at;
  };
  columns.forEach(number);
  const slots = new Map(columns.flat().map((slot) => [slot.id, slot]));
  const behind = new Map<string, Slot[]>();
  for (const slot of slots.values())
    for (const id of slot.before) behind.set(id, [...(behind.get(id) ?? []), slot]);
  const mean = (found: (Slot | undefined)[], otherwise: number) =>
    found.length ? found.reduce((sum, slot) => sum + (slot?.at ?? 0), 0) / found.length : otherwise;
  for (let sweep = 0; sweep < SWEEPS; sweep++) {
    for (const column of sweep % 2 ? columns.toReversed() : columns) {
      const wish = new Map(
        column.map((slot) => [
          slot,
          sweep % 2
            ? mean(behind.get(slot.id) ?? [], slot.at)
            : mean(
                slot.before.map((id) => slots.get(id)),
                slot.at,
              ),
        ]),
      );
      column.sort((a, b) => (wish.get(a) ?? 0) - (wish.get(b) ?? 0));
      number(column);
    }
  }
}

/** What is taller begins at the top, where one looks first. */
const TALL = 640;

function drawn(
  columns: Slot[][],
  routes: { from: string; to: string; over: string[] }[],
  { gap, bend, height: usual }: Measure,
): Layout {
  const size = (slot: Slot) => slot.block?.height ?? PASS;
  const heights = columns.map((column) => column.reduce((sum, slot) => sum + size(slot) + gap, -gap));
  const height = Math.max(...heights, usual);
  const layout: Layout = { width: 0, height, places: new Map(), lines: [] };
  const ports = new Map<string, { left: number; right: number; end: number; y: number }>();
  let left = 0;
  columns.forEach((column, number) => {
    let top = height > TALL ? 0 : (height - (heights[number] ?? 0)) / 2;
    const width = Math.max(...column.map((slot) => slot.block?.width ?? 0));
    for (const slot of column) {
      if (slot.block) layout.lines.push(...moved(slot.block, left, top, layout.places).lines);
      const right = left + (slot.block?.width ?? width);
      ports.set(slot.id, { left, right, end: left + width, y: top + size(slot) / 2 });
      top += size(slot) + gap;
    }
    layout.width = left + width;
    left += width + bend;
  });
  for (const { from, to, over } of routes) {
    const stops = [from, ...over, to].map((id) => ports.get(id)).filter((stop) => stop !== undefined);
    layout.lines.push({ from, to, path: pathThrough(stops) });
  }
  return layout;
}

function pathThrough(stops: { left: number; right: number; end: number; y: number }[]): string {
  const [first, ...others] = stops;
  if (!first) return '';
  let path = `M${first.right} ${first.y}L${first.end} ${first.y}`;
  let [x, y] = [first.end, first.y];
  for (const [place, stop] of others.entries()) {
    const half = (x + stop.left) / 2;
    path += `C${half} ${y} ${half} ${stop.y} ${stop.left} ${stop.y}`;
    if (place < others.length - 1) path += `L${stop.end} ${stop.y}`;
    [x, y] = [stop.end, stop.y];
  }
  return path;
}
