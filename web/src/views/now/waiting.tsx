import { isRun, type Work } from '../../api/client';
import { actions, useAction } from '../../api/queries';
import { named, stateOf } from '../../model/work';
import { Glyph } from '../../parts/glyph';
import { Moment, Said } from '../../parts/text';
import { Act } from '../act';
import { WorkLink } from '../work_link';

/** What starts or goes on by itself, and what it waits for. */
export function Waiting({ work, all }: { work: Work[]; all: Work[] }) {
  const resume = useAction((id: string) => actions.run(id, 'resume'));
  const titles = new Map(all.map((item) => [item.id, item.title]));
  const why = (item: Work): string => {
    if (item.reason) return named(item.reason, (id) => titles.get(id));
    if (isRun(item)) return item.status === 'paused' ? 'paused' : 'next when there is room';
    const before = item.depends_on.map((id) => titles.get(id)).filter((title) => title !== undefined);
    return before.length > 0 ? `after ${before.join(', ')}` : 'next when a seat is free';
  };
  return (
    <section className="section bleed" aria-labelledby="h-wait">
      <header>
        <h2 id="h-wait">Waiting, not for you</h2>
        <span className="faint">{work.length}</span>
      </header>
      <ul className="waits panel">
        {work.slice(0, 50).map((item) => (
          <li key={item.id}>
            <Glyph state={stateOf(item)} />
            <WorkLink work={item} className="cut">
              <Said>{item.title}</Said>
            </WorkLink>
            <span className="why faint cut">
              <Said>{why(item)}</Said>
            </span>
            {item.status === 'paused' ? (
              <Act small look="quiet" onClick={() => resume.mutate(item.id)}>
                Resume
              </Act>
            ) : (
              <span className="faint small">
                {!isRun(item) && (item.not_before ? <Moment at={item.not_before} /> : item.priority)}
              </span>
            )}
          </li>
        ))}
      </ul>
    </section>
  );
}
