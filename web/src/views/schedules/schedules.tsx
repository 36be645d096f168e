import { Link } from '@tanstack/react-router';
import type { Schedule } from '../../api/client';
import { useSchedules } from '../../api/queries';
import { span } from '../../model/format';
import type { State } from '../../model/work';
import { Empty, Loading, Problem } from '../../parts/controls';
import { Glyph } from '../../parts/glyph';
import { Icon } from '../../parts/icon';
import { Table } from '../../parts/table';
import { Moment, Said } from '../../parts/text';
import { View as Frame } from '../../shell/layout';
import { useScope } from '../../shell/preferences';
import { cronWords, zone } from '../next_times';

const STATES: Record<Schedule['status'], State> = {
  active: 'queued',
  paused: 'paused',
  completed: 'said',
  failed: 'bad',
  cancelled: 'cancelled',
  expired: 'cancelled',
};

export const scheduleState = (schedule: Schedule): State =>
  schedule.in_flight.length > 0 ? 'run' : STATES[schedule.status];

/** When it starts, in words. */
export function rhythm(schedule: Schedule): string {
  if (schedule.cron) return `${cronWords(schedule.cron)}, ${schedule.timezone}`;
  if (schedule.every_s) return `every ${span(schedule.every_s)}`;
  if (schedule.after) return 'after other work';
  return schedule.at ? 'once' : '';
}

const Fresh = () => (
  <Link className="btn sm" to="/new" search={{ when: 'cron' }}>
    <Icon name="plus" />
    New schedule
  </Link>
);

export function View() {
  const read = useSchedules();
  const [project] = useScope();
  const schedules = (read.data?.schedules ?? []).filter((one) => !project || one.project === project);
  return (
    <Frame title="Schedules">
      <div className="page wide stack">
        {schedules.length > 0 && (
          <div className="bar-of-list">
            <span className="faint">Scheduled work.</span>
            <Fresh />
          </div>
        )}
        <Problem error={read.error} />
        {read.isPending && <Loading />}
        {read.data && schedules.length === 0 && (
          <Empty title="No schedule yet">
            <p>Schedule any work: choose “When” in New, or run</p>
            <p className="cmd">kapelle schedule create --cron "0 3 * * *" run "Update the dependencies"</p>
            <Fresh />
          </Empty>
        )}
        {schedules.length > 0 && (
          <Table columns={['Work', 'Type', 'When', 'Next', { num: 'Started' }]}>
            {schedules.map((schedule) => (
              <tr key={schedule.id}>
                <td className="full">
                  <span className="t">
                    <Glyph state={scheduleState(schedule)} label={schedule.status} />
                    <Link className="cut" to="/schedules/$id" params={{ id: schedule.id }}>
                      <Said>{schedule.title}</Said>
                    </Link>
                  </span>
                </td>
                <td className="dim">{schedule.kind}</td>
                <td className="dim">
                  <Said>{rhythm(schedule)}</Said>
                </td>
                <td>
                  {schedule.next_at ? (
                    <>
                      <Moment at={schedule.next_at} />
                      {schedule.cron && schedule.timezone !== zone() && (
                        <span className="faint"> {zone()}</span>
                      )}
                    </>
                  ) : (
                    <span className="faint">{schedule.reason ?? schedule.status}</span>
                  )}
                </td>
                <td className="num faint">{schedule.started}</td>
              </tr>
            ))}
          </Table>
        )}
      </div>
    </Frame>
  );
}
