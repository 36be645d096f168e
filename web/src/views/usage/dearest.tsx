import { useUsage } from '../../api/queries';
import { money } from '../../model/format';
import { useScope } from '../../shell/preferences';
import { Titled } from './table';

const [DAYS, MOST] = [7, 5];

function weekAgo(): string {
  const begun = new Date();
  begun.setHours(0, 0, 0, 0);
  begun.setDate(begun.getDate() - DAYS + 1);
  return begun.toISOString();
}

/** The runs, and the tasks on their own, that cost most this week. */
export function Dearest() {
  const [project] = useScope();
  const rows = useUsage('task', weekAgo(), project, 'run').data?.rows ?? [];
  const sums = new Map<string, number>();
  for (const { key, across, cost_usd } of rows) {
    const id = across ?? key ?? '';
    sums.set(id, (sums.get(id) ?? 0) + (cost_usd ?? 0));
  }
  const dearest = [...sums].filter(([, cost]) => cost > 0).sort(([, a], [, b]) => b - a);
  if (dearest.length === 0) return null;
  return (
    <section className="section">
      <header>
        <h2>Dearest this week</h2>
      </header>
      <div className="panel">
        <table className="table">
          <tbody>
            {dearest.slice(0, MOST).map(([id, cost]) => (
              <tr key={id}>
                <td>
                  <Titled id={id} title={rows.find((row) => row.key === id)?.title} />
                </td>
                <td className="num strong">{money(cost)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </section>
  );
}
