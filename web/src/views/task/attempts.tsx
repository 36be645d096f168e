import type { Task } from '../../api/client';
import { bytes, counted, money } from '../../model/format';
import { attemptState } from '../../model/work';
import { Empty } from '../../parts/controls';
import { Glyph } from '../../parts/glyph';
import { Table } from '../../parts/table';
import { Elapsed, Moment, Said } from '../../parts/text';

export function Attempts({ task }: { task: Task }) {
  if (task.attempts.length === 0) return <Empty title="No attempts yet" />;
  return (
    <Table
      columns={[
        'Attempt',
        'Agent',
        'Outcome',
        { num: 'Started' },
        { num: 'Duration' },
        { num: 'Turns' },
        { num: 'Output' },
        { num: 'Cost' },
      ]}
      wide
    >
      {task.attempts.toReversed().map((attempt) => (
        <tr key={attempt.id} className={attempt.status === 'running' ? 'here' : ''}>
          <td>
            <span className="t">
              <Glyph state={attemptState(attempt, task)} />
              {attempt.number}, {attempt.mode === 'fresh' ? 'fresh' : 'resumed'}
            </span>
          </td>
          <td>{[attempt.agent, attempt.model].filter(Boolean).join(', ')}</td>
          <td className="full">
            <Said>{attempt.reason ?? attempt.status}</Said>
            {attempt.evidence && (
              <span className="evi">
                <Said>{attempt.evidence}</Said>
              </span>
            )}
            {attempt.diagnosis && (
              <span className="faint small block">
                <Said>{attempt.diagnosis}</Said>
              </span>
            )}
          </td>
          <td className="num faint desk">
            <Moment at={attempt.started_at} />
          </td>
          <td className="num faint">
            <Elapsed from={attempt.started_at} to={attempt.ended_at} />
          </td>
          <td className="num faint desk">{attempt.usage ? counted(attempt.usage.turns, 'turn') : ''}</td>
          <td className="num faint desk">{bytes(attempt.output_bytes)}</td>
          <td className="num">{attempt.usage ? money(attempt.usage.cost_usd, '–') : ''}</td>
        </tr>
      ))}
    </Table>
  );
}
