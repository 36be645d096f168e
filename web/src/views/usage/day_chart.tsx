import type { Usage } from '../../api/client';
import { money } from '../../model/format';
import { Chart, Rules } from '../../parts/chart';

const [HEIGHT, LEFT, TOP, BOTTOM] = [220, 52, 12, 28];
const MOST = 30;

/** What each day cost; where no price is known, how many attempts there were. */
export function DayChart({ rows }: { rows: Usage['rows'] }) {
  const days = rows
    .filter((row) => row.key !== null)
    .sort((a, b) => (a.key ?? '').localeCompare(b.key ?? ''))
    .slice(-MOST);
  const priced = days.some((day) => (day.cost_usd ?? 0) > 0);
  const value = (day: Usage['rows'][number]) => (priced ? (day.cost_usd ?? 0) : day.attempts);
  const most = Math.max(...days.map(value), priced ? 0.01 : 1);
  const y = (amount: number) => TOP + (HEIGHT - TOP - BOTTOM) * (1 - amount / most);
  const name = (amount: number) => (priced ? money(amount) : String(Math.round(amount)));
  const day = (key: string) =>
    new Date(`${key}T00:00`).toLocaleDateString('en-GB', { day: 'numeric', month: 'short' });
  const title = priced ? 'Cost by day' : 'Attempts by day';
  const draw = (width: number) => {
    const slot = (width - LEFT) / Math.max(days.length, 7);
    return (
      <>
        <Rules at={[0, most / 2, most]} y={y} left={LEFT} right={width} name={name} />
        {days.map((one, place) => (
          <g key={one.key}>
            <rect
              className="b-day"
              x={LEFT + place * slot + slot * 0.15}
              y={y(value(one))}
              width={Math.min(slot * 0.7, 44)}
              height={Math.max(1, HEIGHT - BOTTOM - y(value(one)))}
              rx={2}
            >
              <title>{`${one.key}: ${name(value(one))}`}</title>
            </rect>
            {place % Math.ceil(days.length / 8) === 0 && (
              <text x={LEFT + place * slot + slot * 0.15} y={HEIGHT - 8}>
                {day(one.key ?? '')}
              </text>
            )}
          </g>
        ))}
      </>
    );
  };
  return (
    <Chart title={title} label={`${title}, at most ${name(most)}`} height={HEIGHT}>
      {draw}
    </Chart>
  );
}
