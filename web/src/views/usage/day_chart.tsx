import type { Usage } from '../../api/client';
import { money } from '../../model/format';
import { Chart, Rules } from '../../parts/chart';

const [HEIGHT, LEFT, TOP, BOTTOM] = [220, 52, 12, 28];
const MOST = 90;
const DAY_MS = 86_400_000;
const GAP = 1;

type Row = Usage['rows'][number];
/** The outcomes of attempts, from the bottom of a bar to its top. */
const ENDS = [
  { look: 'ok', label: 'verified', of: ['verified'] },
  { look: 'bad', label: 'failed or cancelled', of: ['failed', 'cancelled', 'lost'] },
  { look: 'said', label: 'unverified', of: ['completed'] },
  { look: 'go', label: 'running', of: ['running'] },
] as const;

const Legend = () => (
  <span className="legend end">
    {ENDS.map(({ look, label }) => (
      <span key={look}>
        <i className={`sw ${look}`} />
        {label}
      </span>
    ))}
  </span>
);

/** A round number of steps that reach at least this high. */
function rulesTo(most: number): number[] {
  const rough = most / 3;
  const unit = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((times) => times * unit).find((size) => size >= rough * 0.999) ?? most;
  return Array.from({ length: Math.ceil(most / step - 1e-9) + 1 }, (_, place) => place * step);
}

/** Every day from the first on, or so many, until today: days are UTC's. */
export function daysFrom(first: string | undefined, least: number): string[] {
  const today = Date.parse(new Date().toISOString().slice(0, 10));
  const since = (today - Date.parse(first ?? '')) / DAY_MS + 1 || 1;
  const count = Math.min(MOST, Math.max(least, since));
  return Array.from({ length: count }, (_, place) =>
    new Date(today - (count - 1 - place) * DAY_MS).toISOString().slice(0, 10),
  );
}

/** The name of a day below its bar; the last one ends where the bar does. */
const Label = ({ x, wide, last, children }: { x: number; wide: number; last: boolean; children: string }) => (
  <text x={last ? x + wide : x + wide / 2} y={HEIGHT - 8} textAnchor={last ? 'end' : 'middle'}>
    {last ? 'today' : children}
  </text>
);

/** Each day by how its attempts ended: what they cost or, where no price is known, how many they were. */
export function DayChart({ rows, least }: { rows: Row[]; least: number }) {
  const days = Map.groupBy(
    rows.filter((row) => row.key !== null),
    (row) => row.key as string,
  );
  const keys = daysFrom([...days.keys()].sort()[0], least);
  const priced = rows.some((row) => (row.cost_usd ?? 0) > 0);
  const value = (row: Row) => (priced ? (row.cost_usd ?? 0) : row.attempts);
  const sum = (found: Row[]) => found.reduce((all, row) => all + value(row), 0);
  const total = (key: string) => sum(days.get(key) ?? []);
  const rules = rulesTo(Math.max(...keys.map(total), priced ? 0.03 : 3));
  const most = rules.at(-1) ?? 1;
  const height = (amount: number) => ((HEIGHT - TOP - BOTTOM) * amount) / most;
  const y = (amount: number) => HEIGHT - BOTTOM - height(amount);
  const name = (amount: number) => {
    if (!priced) return String(Math.round(amount));
    return amount ? money(amount) : '$0';
  };
  const day = (key: string) =>
    new Date(`${key}T00:00`).toLocaleDateString('en-GB', { day: 'numeric', month: 'short' });
  const parts = (key: string) => {
    let below = 0;
    return ENDS.flatMap(({ look, label, of }) => {
      const amount = sum((days.get(key) ?? []).filter((row) => of.some((end) => end === row.across)));
      const from = below;
      below += amount;
      return amount > 0 ? [{ look, label, amount, from }] : [];
    });
  };
  const title = priced ? 'Cost by day' : 'Attempts by day';
  const draw = (width: number) => {
    const slot = (width - LEFT) / keys.length;
    const wide = Math.min(slot * 0.7, 44);
    return (
      <>
        <defs>
          <pattern
            id="hatch"
            width="4"
            height="4"
            patternUnits="userSpaceOnUse"
            patternTransform="rotate(45)"
          >
            <rect className="b-day" width="1.5" height="4" />
          </pattern>
        </defs>
        <Rules at={rules} y={y} left={LEFT} right={width} name={name} />
        {keys.map((key, place) => {
          const x = LEFT + place * slot + slot * 0.15;
          return (
            <g key={key}>
              {parts(key).map(({ look, label, amount, from }) => (
                <rect
                  key={look}
                  className={`b-${look}`}
                  x={x}
                  y={y(from + amount)}
                  width={wide}
                  height={Math.max(1, height(amount) - GAP)}
                  rx={1.5}
                >
                  <title>{`${day(key)}, ${label}: ${name(amount)}`}</title>
                </rect>
              ))}
              {(keys.length - 1 - place) % Math.ceil(keys.length / 6) === 0 && (
                <Label x={x} wide={wide} last={place === keys.length - 1}>
                  {day(key)}
                </Label>
              )}
            </g>
          );
        })}
      </>
    );
  };
  const dearest = [...keys].sort((a, b) => total(b) - total(a))[0];
  const label = `${title}, by how the work ended${dearest ? `; most on ${day(dearest)}: ${name(total(dearest))}` : ''}`;
  return (
    <Chart title={title} label={label} legend={<Legend />} height={HEIGHT}>
      {draw}
    </Chart>
  );
}
