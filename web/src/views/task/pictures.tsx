import { useQuery } from '@tanstack/react-query';
import { api, ask, type Task } from '../../api/client';
import { counted } from '../../model/format';
import { Empty, Loading } from '../../parts/controls';

/** The screenshots that the task's agents took of what they saw. */
export function Pictures({ task }: { task: Task }) {
  const found = useQuery({
    queryKey: ['files', task.id, task.status],
    queryFn: () => ask(api.GET('/api/v1/tasks/{task_id}/files', { params: { path: { task_id: task.id } } })),
  });
  if (!found.data) return <Loading lines={4} />;
  if (found.data.length === 0) return <Empty title="No screenshots" />;
  return (
    <section className="stack" aria-label={counted(found.data.length, 'screenshot')}>
      {found.data.map(({ attempt, name }) => (
        <figure key={`${attempt}/${name}`} className="panel picture">
          <img
            src={`/api/v1/tasks/${task.id}/files/${name}?attempt=${attempt}`}
            alt={`Screenshot of the agent: ${name}`}
            loading="lazy"
          />
          <figcaption className="faint small">
            {name}, attempt {attempt}
          </figcaption>
        </figure>
      ))}
    </section>
  );
}
